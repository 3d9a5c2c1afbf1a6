// The functions of src/intrinsics.cuh for a processor.
//
// A copy into shared memory happens as late as the card may do it: when a thread waits for its group.
// Until then its target is not a number. So a kernel that reads too early fails.
#pragma once

#include "../src/dtype.cuh"
#include "cuda_bf16.h"
#include "tensor_core.h"

#define DYNAMIC_SHARED(name) char *name = emulation::block().shared

inline void let_next_start() {}
inline void wait_for_previous() {}

template <int DTYPE> inline float from_bits(unsigned short bits) {
  if constexpr (DTYPE == F16) {
    __half x;
    std::memcpy(&x, &bits, 2);
    return (float)x;
  } else {
    return __bfloat162float({bits});
  }
}

template <int DTYPE>
inline void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  using namespace emulation;
  Thread &thread = block().thread();
  unsigned given[6] = {a0, a1, a2, a3, b0, b1};
  std::memcpy(thread.given, given, sizeof given);
  std::memcpy(thread.sums, c, sizeof c);
  with_warp([](Thread *lanes) {
    float a[16][GROUP], b[8][GROUP];
    auto half = [&](int lane, int word, int i) {
      return from_bits<DTYPE>((unsigned short)(lanes[lane].given[word] >> 16 * i));
    };
    for (int lane = 0; lane < WARP; lane++)
      for (int i = 0; i < 2; i++) {
        int g = lane / 4, k = 2 * (lane % 4) + i;
        a[g][k] = half(lane, 0, i), a[g + 8][k] = half(lane, 1, i);
        a[g][k + 8] = half(lane, 2, i), a[g + 8][k + 8] = half(lane, 3, i);
        b[g][k] = half(lane, 4, i), b[g][k + 8] = half(lane, 5, i);
      }
    for (int lane = 0; lane < WARP; lane++)
      for (int i = 0; i < 4; i++) {
        float &sum = lanes[lane].sums[i];
        sum = add_group(sum, a[lane / 4 + i / 2 * 8], b[2 * (lane % 4) + i % 2]);
      }
  });
  std::memcpy(c, thread.sums, sizeof c);
}

inline uint4 load_once(const char *at) { return *(const uint4 *)at; }

inline void copy_async(void *to, const char *from, bool there) {
  emulation::check_shared(to);
  // The card reads the bytes, so they must exist even if they are not used.
  volatile char touched = from[0] ^ from[15];
  (void)touched;
  std::memset(to, 0xff, 16);
  emulation::block().thread().open.push_back({to, from, there});
}

inline void close_group() {
  emulation::Thread &thread = emulation::block().thread();
  thread.groups.push_back(std::move(thread.open));
  thread.open.clear();
}

template <int COUNT> inline void wait_groups() {
  auto &groups = emulation::block().thread().groups;
  for (; (int)groups.size() > COUNT; groups.pop_front())
    for (const emulation::Copy &copy : groups.front()) {
      if (copy.there) std::memcpy(copy.to, copy.from, 16);
      else std::memset(copy.to, 0, 16);
    }
}

// Loads four tiles; `is_turned` transposes each.
inline void load_four_tiles(unsigned (&x)[4], const void *at, bool is_turned) {
  using namespace emulation;
  Thread &thread = block().thread();
  check_shared(at);
  thread.address = at;
  with_warp([&](Thread *lanes) {
    auto number = [&](int tile, int row, int col) {
      unsigned short x;
      std::memcpy(&x, (const char *)lanes[8 * tile + row].address + 2 * col, 2);
      return (unsigned)x;
    };
    for (int lane = 0; lane < WARP; lane++)
      for (int tile = 0; tile < 4; tile++) {
        int g = lane / 4, k = 2 * (lane % 4);
        unsigned low = is_turned ? number(tile, k, g) : number(tile, g, k);
        unsigned high = is_turned ? number(tile, k + 1, g) : number(tile, g, k + 1);
        lanes[lane].got[tile] = low | high << 16;
      }
  });
  std::memcpy(x, thread.got, sizeof x);
}

inline void load_tiles(unsigned (&x)[4], const void *at) { load_four_tiles(x, at, false); }
inline void load_tiles_turned(unsigned (&x)[4], const void *at) { load_four_tiles(x, at, true); }

inline float power(float x) { return std::exp2(x); }
