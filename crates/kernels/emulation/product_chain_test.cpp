// Every output of the kernel is one chain over its inputs, whatever the launch and the other rows.
#include "../src/product_chain.cu"
#include "testing.h"

using namespace testing;

struct Launch {
  int rows, inputs, warps, stages;
  bool has_bias;
};

template <int DTYPE, int TILES, int EIGHTS> void check(const Launch &how, const std::vector<int> &outputs) {
  int x_stride = how.inputs + 8 * between(0, 1), eights = 0;
  auto x = halves<DTYPE>((size_t)how.rows * x_stride, 12);
  Products f = {(const char *)x.get(), x_stride, how.rows, how.inputs, (int)outputs.size(), {}};
  std::vector<std::unique_ptr<unsigned short[]>> weights;
  std::vector<std::unique_ptr<float[]>> sums, biases;
  for (size_t p = 0; p < outputs.size(); p++) {
    int stride = how.inputs + 8 * between(0, 1), count = outputs[p];
    weights.push_back(halves<DTYPE>((size_t)count * stride, 12));
    sums.push_back(poisoned((size_t)how.rows * count));
    biases.push_back(std::make_unique<float[]>(count));
    for (int o = 0; o < count; o++) biases[p][o] = number(2);
    const char *bias = how.has_bias ? (const char *)biases[p].get() : nullptr;
    f.part[p] = {(const char *)weights[p].get(), bias, sums[p].get(), stride, count, count, F32};
    eights += (count + 7) / 8;
  }
  int per_block = how.warps * EIGHTS;
  size_t shared = (size_t)how.stages * 2 * CHAIN_INPUTS * (16 * TILES + 8 * per_block);
  emulation::launch({(eights + per_block - 1) / per_block, 1, 1}, 32 * how.warps + CHAIN_COPIERS, shared,
                    [&] { product_chain<DTYPE, TILES, EIGHTS>(f, how.stages); });
  for (size_t p = 0; p < outputs.size(); p++)
    for (int r = 0; r < how.rows; r++)
      for (int o = 0; o < outputs[p]; o++) {
        const unsigned short *row = x.get() + (size_t)r * x_stride;
        float expected = chain<DTYPE>(row, weights[p].get() + o * f.part[p].weight_stride, how.inputs);
        if (how.has_bias) expected += biases[p][o];
        std::string what = "matrix " + std::to_string(p) + " row " + std::to_string(r) + " output " +
                           std::to_string(o) + " of " + std::to_string(how.rows) + " x " +
                           std::to_string(how.inputs) + ", warps " + std::to_string(how.warps);
        expect(same_bits(sums[p][(size_t)r * outputs[p] + o], expected), what);
      }
}

int main() {
  check<F16, 1, 1>({16, 1536, 5, 4, true}, {40, 24, 20});
  check<BF16, 1, 1>({7, 80, 3, 8, false}, {33});
  check<F16, 1, 2>({16, 272, 2, 3, true}, {72, 8, 9});
  check<BF16, 2, 1>({29, 640, 4, 3, false}, {100});
  check<F16, 2, 2>({32, 384, 8, 4, false}, {48});
  check<F16, 4, 1>({64, 512, 8, 2, false}, {96, 40});
  check<BF16, 4, 2>({33, 16, 1, 2, false}, {5});
  for (int i = 0; i < 16; i++) {
    Launch how = {between(1, 16), 16 * between(1, 30), between(1, chain_warps_max(1)), between(2, 8), between(0, 1) == 1};
    check<F16, 1, 1>(how, {between(1, 120), between(1, 40)});
  }
}
