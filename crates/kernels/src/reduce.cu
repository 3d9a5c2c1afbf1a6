// Reductions of rows: lengths, sums, the largest elements.
#include "common.cuh"

// Sums doubles over the block, always by the same tree.
template <int COUNT> __device__ inline double block_sum_wide(double x) {
  __shared__ double parts[COUNT];
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  double all = parts[0];
  for (int w = 1; w < COUNT; w++) all += parts[w];
  return all;
}

extern "C" __global__ void reduce_norm(Mat x, Mat out) {
  wait_for_previous();
  let_next_start();
  const float *from = row(x, ROW);
  double squares = 0;
  for (int i = threadIdx.x; i < x.cols; i += THREADS) squares += (double)from[i] * from[i];
  squares = block_sum_wide<WARPS>(squares);
  if (threadIdx.x == 0) *row(out, ROW) = (float)sqrt(squares);
}

// One thread for each column: adds the rows in order, and the rounding errors to a second sum.
extern "C" __global__ void reduce_sum(Mat x, Mat out) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c >= x.cols) return;
  float all = row(out, 0)[c], lost = row(out, 1)[c];
#pragma unroll 8
  for (int r = 0; r < x.rows; r++) {
    float number = row(x, r)[c], next = all + number, part = next - all;
    lost += (all - (next - part)) + (number - part);
    all = next;
  }
  row(out, 0)[c] = all;
  row(out, 1)[c] = lost;
}

constexpr int LARGEST_THREADS = 1024, LARGEST_WARPS = LARGEST_THREADS / 32;

typedef unsigned long long Key;

// Sort key of an element; of equal elements the lower column has the higher key.
__device__ inline Key key_of(float x, int place) {
  unsigned bits = __float_as_uint(x), order = bits >> 31 ? ~bits : bits | 0x80000000u;
  return (Key)order << 32 | (unsigned)~place;
}

__device__ inline Key largest_of_block(Key key) {
  __shared__ Key parts[LARGEST_WARPS];
  for (int step = 16; step > 0; step /= 2) key = max(key, __shfl_xor_sync(~0u, key, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = key;
  __syncthreads();
  key = parts[threadIdx.x % 32];
  for (int step = 16; step > 0; step /= 2) key = max(key, __shfl_xor_sync(~0u, key, step));
  return key;
}

// Finds one element after another: each is the largest below the previous one.
extern "C" __global__ void __launch_bounds__(LARGEST_THREADS) reduce_largest(Mat x, int shares, Mat out) {
  wait_for_previous();
  let_next_start();
  const float *from = row(x, ROW);
  float *to = row(out, ROW), most = 0;
  int count = out.cols / 2;
  double all = 1;
  Key last = ~0ull;
  for (int n = 0; n < count; n++) {
    Key best = 0;
    for (int i = threadIdx.x; i < x.cols; i += LARGEST_THREADS) {
      Key key = key_of(from[i], i);
      if (n == 0 || key < last) best = max(best, key);
    }
    last = largest_of_block(best);
    int place = ~(unsigned)last;
    float value = from[place];
    if (n == 0 && shares) {
      most = value, all = 0;
      for (int i = threadIdx.x; i < x.cols; i += LARGEST_THREADS) all += (double)expf(from[i] - most);
      all = block_sum_wide<LARGEST_WARPS>(all);
    }
    if (threadIdx.x == 0) {
      to[n] = (float)place;
      to[count + n] = shares ? (float)((double)expf(value - most) / all) : value;
    }
  }
}
