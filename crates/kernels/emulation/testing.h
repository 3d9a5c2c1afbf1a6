// Random operands, references and comparisons of the tests.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "intrinsics.cuh"

namespace testing {

inline std::mt19937 &random_bits() {
  static std::mt19937 random(7);
  return random;
}

// Number from `from` to `to`.
inline int between(int from, int to) { return from + (int)(random_bits()() % (unsigned)(to - from + 1)); }

// Random number whose magnitude varies by `spread` powers of two.
inline float number(int spread) {
  std::normal_distribution<float> normal;
  return std::ldexp(normal(random_bits()), between(-spread, 0));
}

// Numbers of a type of two bytes in memory of exactly their size, so that a wrong address is found.
template <int DTYPE> std::unique_ptr<unsigned short[]> halves(size_t count, int spread) {
  auto all = std::make_unique<unsigned short[]>(count);
  for (size_t i = 0; i < count; i++) {
    float x = number(spread);
    if constexpr (DTYPE == F16) {
      __half half = (__half)x;
      std::memcpy(&all[i], &half, 2);
    } else {
      all[i] = __float2bfloat16_rn(x).bits;
    }
  }
  return all;
}

// A matrix of numbers that a kernel must overwrite.
inline std::unique_ptr<float[]> poisoned(size_t count) {
  auto all = std::make_unique<float[]>(count);
  std::fill_n(all.get(), count, NAN);
  return all;
}

// Sum of products as one chain over the inputs, sixteen at a time. Missing inputs are zero.
template <int DTYPE> float chain(const unsigned short *a, const unsigned short *b, int inputs) {
  float sum = 0;
  for (int k = 0; k < inputs; k += emulation::GROUP) {
    float left[emulation::GROUP] = {}, right[emulation::GROUP] = {};
    for (int i = 0; i < emulation::GROUP && k + i < inputs; i++)
      left[i] = from_bits<DTYPE>(a[k + i]), right[i] = from_bits<DTYPE>(b[k + i]);
    sum = emulation::add_group(sum, left, right);
  }
  return sum;
}

inline bool same_bits(float a, float b) { return std::memcmp(&a, &b, 4) == 0; }

// Ends the test if `good` is false.
inline void expect(bool good, const std::string &what) {
  if (good) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

}  // namespace testing
