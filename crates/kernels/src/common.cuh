// Shared by all kernels: matrices in the slab, stored numbers, sums over warps.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <intrinsics.cuh>

// A matrix in the slab, with the host's layout.
struct Mat {
  char *at;
  int rows, cols;
  long long stride;
};

__device__ inline float load(const char *at, int dtype, long long i) {
  if (dtype == F16) return __half2float(((const __half *)at)[i]);
  if (dtype == BF16) return __bfloat162float(((const __nv_bfloat16 *)at)[i]);
  return ((const float *)at)[i];
}

__device__ inline void store(char *at, int dtype, long long i, float x) {
  if (dtype == F16) ((__half *)at)[i] = __float2half_rn(x);
  else if (dtype == BF16) ((__nv_bfloat16 *)at)[i] = __float2bfloat16_rn(x);
  else ((float *)at)[i] = x;
}

__device__ inline float *row(const Mat &m, long long r) { return (float *)m.at + r * m.stride; }
__device__ inline int id(const Mat &m, long long r, long long c) {
  return ((const int *)m.at)[r * m.stride + c];
}

// Column and row of a thread in a grid of (columns, rows).
#define COLUMN (blockIdx.x * (long long)blockDim.x + threadIdx.x)
#define ROW (long long)blockIdx.y

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

// Sums over a warp, with the same result in every lane, always by the same tree.
__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__device__ inline float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

struct Sum {
  __device__ static float of(float a, float b) { return a + b; }
  __device__ static float warp(float x) { return warp_sum(x); }
};

struct Max {
  __device__ static float of(float a, float b) { return fmaxf(a, b); }
  __device__ static float warp(float x) { return warp_max(x); }
};

// Sums over a block of COUNT warps, always by the same tree.
template <class How, int COUNT> __device__ inline float block_all(float x) {
  __shared__ float parts[COUNT];
  x = How::warp(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float all = parts[0];
#pragma unroll
  for (int w = 1; w < COUNT; w++) all = How::of(all, parts[w]);
  return all;
}

__device__ inline float block_sum(float x) { return block_all<Sum, WARPS>(x); }
__device__ inline float block_max(float x) { return block_all<Max, WARPS>(x); }

// Notes an invalid index that was read from the slab. The caller skips its work.
__device__ inline bool bad(int *fault, int what, bool is_bad) {
  if (is_bad) atomicCAS(fault, 0, what);
  return is_bad;
}

enum Fault { GATHER = 1, SCATTER = 2, PAGE = 3 };

// KV pages of one layer.
struct Kv {
  char *at;
  long long page_bytes;
  int pages, page_tokens, kv_heads, d_head, dtype;
  int page_shift;  // log2 of page_tokens, if that is a power of two
};

// Address of a token's page, and offset of its key or value there. Null if the page is invalid.
__device__ inline char *page_of(const Kv &kv, const Mat &tables, int sequence, int position, int *fault) {
  bool out = sequence < 0 || sequence >= tables.rows || position < 0 || position / kv.page_tokens >= tables.cols;
  if (bad(fault, PAGE, out)) return nullptr;
  int page = id(tables, sequence, position / kv.page_tokens);
  if (bad(fault, PAGE, page < 0 || page >= kv.pages)) return nullptr;
  return kv.at + page * kv.page_bytes;
}

__device__ inline long long element(const Kv &kv, int head, int position, int value) {
  long long half = (long long)kv.kv_heads * kv.page_tokens * kv.d_head;
  return value * half + ((long long)head * kv.page_tokens + position % kv.page_tokens) * kv.d_head;
}

struct Attend {
  int heads, window;  // window 0 means no window
  float scale;
};

__device__ inline int first_key(int position, int window) {
  return window > 0 && window < position + 1 ? position + 1 - window : 0;
}

// Copy of an output in the type of the weights of the next product. Null address if there is none.
struct Shadow {
  char *at;
  long long stride;
  int dtype;
};

__device__ inline void cast(const Shadow &to, long long r, long long c, float x) {
  if (to.at) store(to.at, to.dtype, r * to.stride + c, x);
}
