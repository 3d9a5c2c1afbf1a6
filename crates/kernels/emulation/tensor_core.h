// Arithmetic of a tensor core of Hopper, for numbers of 16 bits and sums in f32.
//
// A tensor core adds sixteen products to a sum at a time. All terms are cut toward zero at one place,
// 25 bits below the largest exponent among them, and added exactly. The result is cut to 24 bits. The
// rule is published (Khattak and Mikaitis, arXiv 2512.07004; MMA-Sim, arXiv 2511.10909).
#pragma once

#include <cmath>
#include <cstdint>

namespace emulation {

constexpr int GROUP = 16;

// Exponent of a number that is not zero.
inline int exponent_of(float x) { return std::ilogb(x); }

inline float add_group(float sum, const float (&a)[GROUP], const float (&b)[GROUP]) {
  constexpr int NONE = -100'000, PLACES = 25, KEPT = 24;
  // Exponents of the factors are added. The product itself may have one more.
  int most = sum == 0 ? NONE : exponent_of(sum);
  for (int i = 0; i < GROUP; i++)
    if (a[i] != 0 && b[i] != 0) most = std::max(most, exponent_of(a[i]) + exponent_of(b[i]));
  if (most == NONE) return sum + 0.0f;
  int place = most - PLACES;
  auto cut = [&](double x) { return (int64_t)std::trunc(std::ldexp(x, -place)); };
  int64_t all = cut(sum);
  for (int i = 0; i < GROUP; i++) all += cut((double)a[i] * (double)b[i]);
  uint64_t size = all < 0 ? (uint64_t)-all : (uint64_t)all;
  int bits = 0;
  while (size >> bits) bits++;
  if (bits > KEPT) size = size >> (bits - KEPT) << (bits - KEPT);
  float y = (float)std::ldexp((double)size, place);
  return all < 0 ? -y : y;
}

}  // namespace emulation
