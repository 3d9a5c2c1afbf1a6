// Names of CUDA's C++ that the kernels use, for a processor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "block.h"

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// Blocks run one after the other, so they may use the same memory.
#define __shared__ static

using std::max;
using std::min;

struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
struct float2 {
  float x, y;
};

typedef _Float16 __half;
struct __half2 {
  __half x, y;
};

inline float __half2float(__half x) { return (float)x; }
inline __half __float2half_rn(float x) { return (__half)x; }
inline __half2 __floats2half2_rn(float x, float y) { return {(__half)x, (__half)y}; }
inline float2 __half22float2(__half2 x) { return {(float)x.x, (float)x.y}; }

inline void __syncthreads() { emulation::barrier(); }

inline int atomicCAS(int *at, int expected, int value) {
  int before = *at;
  if (before == expected) *at = value;
  return before;
}

inline float __shfl_xor_sync(unsigned, float x, int mask) {
  emulation::Thread &thread = emulation::block().thread();
  std::memcpy(&thread.given[0], &x, 4);
  emulation::with_warp([&](emulation::Thread *lanes) {
    for (int lane = 0; lane < emulation::WARP; lane++) lanes[lane].got[0] = lanes[lane ^ mask].given[0];
  });
  std::memcpy(&x, &thread.got[0], 4);
  return x;
}
