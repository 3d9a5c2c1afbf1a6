// Numbers of the type bf16, for a processor.
#pragma once

#include "cuda_fp16.h"

struct __nv_bfloat16 {
  unsigned short bits;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 x) {
  unsigned bits = (unsigned)x.bits << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

// Rounds to the nearest number, and to an even one between two.
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  if (std::isnan(x)) return {(unsigned short)(bits >> 16 | 1)};
  return {(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {__bfloat162float(x.x), __bfloat162float(x.y)}; }
