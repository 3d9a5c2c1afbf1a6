// Products of few rows: near the exact sums, and each row has the bits that it has alone.
#include "../src/gemv_small_batch.cu"
#include "testing.h"

using namespace testing;

// Runs the kernel with blocks of 8 · HALVES outputs and 8 · TILES rows.
template <int DTYPE, int HALVES, int TILES> void run(const Products &f) {
  int tiles = 0;
  for (int p = 0; p < f.parts; p++) tiles += (f.part[p].outputs + HALVES * 8 - 1) / (HALVES * 8);
  int groups = (f.rows + TILES * 8 - 1) / (TILES * 8);
  emulation::launch({tiles, groups, 1}, THREADS, 0, [&] { gemv<DTYPE, HALVES, TILES>(f); });
}

template <int DTYPE, int HALVES, int TILES> void run_gated(const Products &f, const Gate &gate) {
  int tiles = (f.part[0].outputs + HALVES * 4 - 1) / (HALVES * 4), groups = (f.rows + TILES * 8 - 1) / (TILES * 8);
  emulation::launch({tiles, groups, 1}, THREADS, 0, [&] { gemv_gated<DTYPE, HALVES, TILES>(f, gate); });
}

template <int DTYPE, int HALVES, int TILES> void check(int rows, int inputs, int outputs) {
  auto x = halves<DTYPE>((size_t)rows * inputs, 2);
  auto first = halves<DTYPE>((size_t)outputs * inputs, 2), second = halves<DTYPE>((size_t)outputs * inputs, 2);
  auto sums = poisoned(2 * (size_t)rows * outputs), alone = poisoned(2 * (size_t)rows * outputs);
  auto gated = poisoned((size_t)rows * outputs);
  auto part = [&](const unsigned short *weights, float *out) {
    return Part{(const char *)weights, nullptr, out, inputs, outputs, outputs, F32};
  };
  size_t half = (size_t)rows * outputs;
  Products f = {(const char *)x.get(), inputs, rows, inputs, 2, {}};
  f.part[0] = part(first.get(), sums.get()), f.part[1] = part(second.get(), sums.get() + half);
  run<DTYPE, HALVES, TILES>(f);
  for (int r = 0; r < rows; r++) {
    Products one = f;
    one.x = (const char *)(x.get() + (size_t)r * inputs), one.rows = 1;
    one.part[0].out = alone.get() + (size_t)r * outputs;
    one.part[1].out = alone.get() + half + (size_t)r * outputs;
    run<DTYPE, 2, 1>(one);
  }
  std::string what = std::to_string(rows) + " x " + std::to_string(inputs) + " to " + std::to_string(outputs);
  for (size_t i = 0; i < 2 * half; i++) expect(same_bits(sums[i], alone[i]), "alone " + what);
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < outputs; o++) {
      double exact = 0, size = 0;
      for (int k = 0; k < inputs; k++) {
        double term = (double)from_bits<DTYPE>(x[(size_t)r * inputs + k]) *
                      from_bits<DTYPE>(first[(size_t)o * inputs + k]);
        exact += term, size += std::fabs(term);
      }
      double off = std::fabs(sums[(size_t)r * outputs + o] - exact);
      expect(off <= 1e-5 * size, "sum of " + what);
    }
  auto again = poisoned(2 * half);
  f.part[0].out = again.get(), f.part[1].out = again.get() + half;
  constexpr int SILU = 0;
  run_gated<DTYPE, HALVES, TILES>(f, {gated.get(), outputs, SILU, {nullptr, 0, 0}});
  for (size_t i = 0; i < half; i++) {
    expect(same_bits(again[i], sums[i]) && same_bits(again[half + i], sums[half + i]), "products beside a gate");
    expect(same_bits(gated[i], activation(SILU, sums[i]) * sums[half + i]), "gate of " + what);
  }
}

int main() {
  check<F16, 2, 1>(1, 520, 40);
  check<F16, 4, 1>(7, 1536, 33);
  check<BF16, 4, 2>(16, 264, 70);
  check<F16, 4, 4>(27, 1032, 24);
  check<BF16, 4, 4>(3, 4096, 5);
}
