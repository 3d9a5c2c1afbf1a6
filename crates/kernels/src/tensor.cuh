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

// Copies COUNT keys and their values into shared memory with THREADS_ threads, numbered by `thread`, each of
// which copies sixteen bytes of a key at a time. Pages are looked up all at once and before the copies,
// because each lookup is a memory round trip.
template <int COUNT, int THREADS_, int SIXTEENS> struct KeyCopy {
  static constexpr int TURNS = COUNT * SIXTEENS / THREADS_, SHARE = THREADS_ / SIXTEENS;
  int k, c, pages[TURNS];

  __device__ inline explicit KeyCopy(int thread) : k(thread / SIXTEENS), c(thread % SIXTEENS) {}

  // Looks up the pages of the keys from `first` on. Keys outside of [from, until) have none.
  __device__ inline void look_up(const Kv &kv, const Mat &tables, int sequence, int first, int from, int until,
                                 int *fault) {
    const int *table = (const int *)tables.at + sequence * tables.stride;
    if (c * 8 >= kv.d_head) until = from;
    bool is_outside = false;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      int key = first + k + i * SHARE;
      pages[i] = -1;
      if (key >= from && key < until) {
        pages[i] = table[key >> kv.page_shift];
        is_outside |= (unsigned)pages[i] >= (unsigned)kv.pages;
      }
    }
    if (!bad(fault, PAGE, is_outside)) return;
    for (int i = 0; i < TURNS; i++) pages[i] = -1;
  }

  // Starts the copies to `place(keys, key, sixteen)` and `place(values, key, sixteen)` as one group. Keys
  // without a page become zero; key `not_yet` stays unchanged.
  template <class Place>
  __device__ inline void start(char *keys, char *values, const Kv &kv, int head, int first, int not_yet, Place place) {
    const char *of_head = kv.at + 2LL * (head << kv.page_shift) * kv.d_head + 16 * c;
    long long to_value = 2LL * kv.kv_heads * kv.page_tokens * kv.d_head;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      int key = first + k + i * SHARE;
      if (key == not_yet) continue;
      // The first page stands in for a missing one; its bytes are not copied.
      unsigned page = max(pages[i], 0), inside = (key & (kv.page_tokens - 1)) * (2 * kv.d_head);
      const char *at = of_head + page * kv.page_bytes + inside;
      copy_async(place(keys, k + i * SHARE, c), at, pages[i] >= 0);
      copy_async(place(values, k + i * SHARE, c), at + to_value, pages[i] >= 0);
    }
    close_group();
  }
};
