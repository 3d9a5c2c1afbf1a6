// Tensor core operations and their loads.
#pragma once

#include "common.cuh"

// c += a · b, where a is 16 by 16 and b is 16 by 8, both of 16-bit numbers. Lane 4g + t holds rows g
// and g + 8 of a, column g of b, and columns 2t and 2t + 1 of rows g and g + 8 of c.
template <int DTYPE>
__device__ inline void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                unsigned b1) {
  if constexpr (DTYPE == F16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Packs two numbers into one register.
template <int DTYPE> __device__ inline unsigned pack(float low, float high) {
  if constexpr (DTYPE == F16) {
    __half2 pair = __floats2half2_rn(low, high);
    return *(unsigned *)&pair;
  } else {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(unsigned *)&pair;
  }
}

template <int DTYPE> __device__ inline float2 unpack(unsigned pair) {
  if constexpr (DTYPE == F16) return __half22float2(*(__half2 *)&pair);
  else return __bfloat1622float2(*(__nv_bfloat162 *)&pair);
}

// Loads sixteen bytes that are read once, next to sixteen that are read next. The cache hint keeps
// the line in L1 for that long, which saves a tenth of a product's time.
__device__ inline uint4 load_once(const char *at) {
  uint4 x;
  asm volatile("ld.global.nc.L1::evict_first.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(at));
  return x;
}

__device__ inline unsigned shared_place(const void *at) { return (unsigned)__cvta_generic_to_shared(at); }

// Copies sixteen bytes into shared memory, or writes zeros.
__device__ inline void copy_async(void *to, const char *from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_place(to)), "l"(from), "r"(there ? 16 : 0));
}

__device__ inline void close_group() { asm volatile("cp.async.commit_group;"); }
// Waits until at most this many groups of copies are in flight.
template <int COUNT> __device__ inline void wait_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(COUNT)); }

// 2 to the power of x.
__device__ inline float power(float x) {
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}

// Starts the copy of COUNT keys, from `first` on, and their values, with THREADS_ threads that each
// copy sixteen bytes of a key to `place(key, sixteen)`. Keys outside of [from, until) become zero;
// key `not_yet` stays unchanged. Pages are looked up all at once, because each lookup is a memory
// round trip.
template <int COUNT, int THREADS_, int SIXTEENS, class Place>
__device__ inline void copy_keys(char *keys, char *values, const Kv &kv, const Mat &tables, int sequence, int head,
                                 int first, int from, int until, int not_yet, int *fault, Place place) {
  constexpr int TURNS = COUNT * SIXTEENS / THREADS_, SHARE = THREADS_ / SIXTEENS;
  int k = threadIdx.x / SIXTEENS, c = threadIdx.x % SIXTEENS, shift = kv.page_shift;
  const int *table = (const int *)tables.at + sequence * tables.stride;
  int pages[TURNS];
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    int key = first + k + i * SHARE;
    bool there = key >= from && key < until && c * 8 < kv.d_head;
    pages[i] = there ? table[key >> shift] : -1;
    if (there && bad(fault, PAGE, (unsigned)pages[i] >= (unsigned)kv.pages)) pages[i] = -1;
  }
  long long to_value = 2LL * kv.kv_heads * kv.page_tokens * kv.d_head;
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    int key = first + k + i * SHARE, inside = (head << shift) + (key & (kv.page_tokens - 1));
    if (key == not_yet) continue;
    bool there = pages[i] >= 0;
    const char *at = there ? kv.at + pages[i] * kv.page_bytes + 2LL * (inside * kv.d_head + c * 8) : kv.at;
    copy_async(place(keys, k + i * SHARE, c), at, there);
    copy_async(place(values, k + i * SHARE, c), at + (there ? to_value : 0), there);
  }
  close_group();
}
