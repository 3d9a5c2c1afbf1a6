// Tensor core operations and their loads.
#pragma once

#include "common.cuh"

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

// One of several matrices that are multiplied with the same inputs.
struct Part {
  const char *weights, *bias;
  float *out;
  long long weight_stride, out_stride;
  int outputs, bias_dtype;
};

// Products of the same inputs with several matrices.
struct Products {
  const char *x;
  long long x_stride;
  int rows, inputs, parts;
  Part part[3];
};

// Waits until at most `count` groups of copies are in flight.
__device__ inline void wait_groups_up_to(int count) {
  switch (count) {
    case 0: wait_groups<0>(); break;
    case 1: wait_groups<1>(); break;
    case 2: wait_groups<2>(); break;
    case 3: wait_groups<3>(); break;
    case 4: wait_groups<4>(); break;
    case 5: wait_groups<5>(); break;
    default: wait_groups<6>(); break;
  }
}

// Copies COUNT keys and their values into shared memory with THREADS_ threads, each of which copies
// sixteen bytes of a key at a time. Pages are looked up all at once and before the copies, because each
// lookup is a memory round trip.
template <int COUNT, int THREADS_, int SIXTEENS> struct KeyCopy {
  static constexpr int TURNS = COUNT * SIXTEENS / THREADS_, SHARE = THREADS_ / SIXTEENS;
  int pages[TURNS];

  // Looks up the pages of the keys from `first` on. Keys outside of [from, until) have none.
  __device__ inline void look_up(const Kv &kv, const Mat &tables, int sequence, int first, int from, int until,
                                 int *fault) {
    int k = threadIdx.x / SIXTEENS, c = threadIdx.x % SIXTEENS;
    const int *table = (const int *)tables.at + sequence * tables.stride;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      int key = first + k + i * SHARE;
      bool there = key >= from && key < until && c * 8 < kv.d_head;
      pages[i] = there ? table[key >> kv.page_shift] : -1;
      if (there && bad(fault, PAGE, (unsigned)pages[i] >= (unsigned)kv.pages)) pages[i] = -1;
    }
  }

  // Starts the copies to `place(keys, key, sixteen)` and `place(values, key, sixteen)` as one group. Keys
  // without a page become zero; key `not_yet` stays unchanged.
  template <class Place>
  __device__ inline void start(char *keys, char *values, const Kv &kv, int head, int first, int not_yet, Place place) {
    int k = threadIdx.x / SIXTEENS, c = threadIdx.x % SIXTEENS;
    long long to_value = 2LL * kv.kv_heads * kv.page_tokens * kv.d_head;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      int key = first + k + i * SHARE, inside = (head << kv.page_shift) + (key & (kv.page_tokens - 1));
      if (key == not_yet) continue;
      bool there = pages[i] >= 0;
      const char *at = there ? kv.at + pages[i] * kv.page_bytes + 2LL * (inside * kv.d_head + c * 8) : kv.at;
      copy_async(place(keys, k + i * SHARE, c), at, there);
      copy_async(place(values, k + i * SHARE, c), at + (there ? to_value : 0), there);
    }
    close_group();
  }
};
