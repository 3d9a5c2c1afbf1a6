// Products of few rows on tensor cores, at the speed of memory.
//
// A block takes 16 or 32 outputs of up to 32 rows. Its warps divide the inputs among them, 64 at a
// time in turn, and their sums are added in order. The order of summation of an output therefore
// does not depend on the other rows or their number. Weights go from memory directly into the
// registers of the tensor cores. The assignment of 64 inputs to positions only affects their order,
// so each lane takes sixteen adjacent inputs, and four lanes take a whole memory line.
#include "activation.cuh"
#include "tensor.cuh"

constexpr int GEMV_INPUTS = 64;

// Gate of two products: f(first) · second.
struct Gate {
  float *out;
  long long stride;
  int f;
  Shadow shadow;
};

// Operands of a warp at a time: 64 inputs of HALVES times eight outputs and TILES times eight rows.
template <int HALVES, int TILES> struct Stage {
  uint4 weights[HALVES][2];
  uint4 x[TILES][2];
};

// Addresses of the weights of eight outputs, or of as many as exist.
struct Eight {
  const char *first;
  long long stride;
  int count, skip;

  __device__ static Eight of(const Part &part, int from, int skip) {
    return {part.weights + 2 * (from * part.weight_stride), part.weight_stride, part.outputs - from, skip};
  }
};

template <int HALVES, int TILES> using Sums = float[WARPS][TILES * 8][HALVES * 8 + 1];

// Sums of some outputs over a warp's share of the inputs.
template <int DTYPE, int HALVES, int TILES>
__device__ inline void multiply_rows(const Products &f, int first_row, const Eight (&of)[HALVES],
                                     Sums<HALVES, TILES> &sums) {
  constexpr int STEP = WARPS * GEMV_INPUTS;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // Offsets, which take half the registers of pointers.
  unsigned weights[HALVES], x[TILES];
#pragma unroll
  for (int h = 0; h < HALVES; h++)
    weights[h] = 2 * min(of[h].skip + g, of[h].count - 1) * (int)of[h].stride + 32 * t;
#pragma unroll
  for (int n = 0; n < TILES; n++) x[n] = 2 * (first_row + n * 8 + g) * (int)f.x_stride + 32 * t;

  auto load_weights = [&](Stage<HALVES, TILES> &stage, int k) {
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        bool there = k + 16 * t + 8 * j < f.inputs;
        stage.weights[h][j] = there ? load_once(of[h].first + (weights[h] + 2 * k + 16 * j)) : uint4{};
      }
  };
  auto load_x = [&](Stage<HALVES, TILES> &stage, int k) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        bool there = first_row + n * 8 + g < f.rows && k + 16 * t + 8 * j < f.inputs;
        stage.x[n][j] = there ? *(const uint4 *)(f.x + (x[n] + 2 * k + 16 * j)) : uint4{};
      }
  };
  float c[HALVES / 2][TILES][4] = {};
  auto use = [&](const Stage<HALVES, TILES> &stage) {
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int m = 0; m < HALVES / 2; m++) {
        uint4 low = stage.weights[2 * m][j], high = stage.weights[2 * m + 1][j];
#pragma unroll
        for (int n = 0; n < TILES; n++) {
          uint4 b = stage.x[n][j];
          multiply<DTYPE>(c[m][n], low.x, high.x, low.y, high.y, b.x, b.y);
          multiply<DTYPE>(c[m][n], low.z, high.z, low.w, high.w, b.z, b.w);
        }
      }
  };

  // Weights do not depend on the kernel before this one, so their loads start before the wait. One
  // stage is loaded while another is used, or two if registers allow it. Beyond the last input all
  // values are zero and add nothing.
  Stage<HALVES, TILES> even, odd;
  int k = warp * GEMV_INPUTS;
  load_weights(even, k);
  if constexpr (TILES == 1) load_weights(odd, k + STEP);
  wait_for_previous();
  load_x(even, k);
  if constexpr (TILES == 1) {
    load_x(odd, k + STEP);
    for (; k < f.inputs; k += 2 * STEP) {
      // The warp has issued all of its loads. Earlier, the next kernel would compete for memory.
      if (k + 2 * STEP >= f.inputs) let_next_start();
      use(even);
      load_weights(even, k + 2 * STEP);
      load_x(even, k + 2 * STEP);
      use(odd);
      load_weights(odd, k + 3 * STEP);
      load_x(odd, k + 3 * STEP);
    }
  } else {
    for (; k < f.inputs; k += STEP) {
      if (k + STEP >= f.inputs) let_next_start();
      load_weights(odd, k + STEP);
      load_x(odd, k + STEP);
      use(even);
      even = odd;
    }
  }
#pragma unroll
  for (int m = 0; m < HALVES / 2; m++)
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[warp][n * 8 + 2 * t + i % 2][m * 16 + g + i / 2 * 8] = c[m][n][i];
  __syncthreads();
}

template <int HALVES, int TILES> __device__ inline float sum_of(const Sums<HALVES, TILES> &sums, int r, int o) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += sums[w][r][o];
  return sum;
}

template <int DTYPE, int HALVES, int TILES> __device__ void gemv(const Products &f) {
  constexpr int OUTPUTS = HALVES * 8;
  __shared__ Sums<HALVES, TILES> sums;
  int tile = blockIdx.x, p = 0;
  while (p + 1 < f.parts && tile >= (f.part[p].outputs + OUTPUTS - 1) / OUTPUTS)
    tile -= (f.part[p++].outputs + OUTPUTS - 1) / OUTPUTS;
  const Part &part = f.part[p];
  int first_output = tile * OUTPUTS, first_row = blockIdx.y * TILES * 8, count = part.outputs - first_output;
  Eight of[HALVES];
#pragma unroll
  for (int h = 0; h < HALVES; h++) of[h] = Eight::of(part, first_output, 8 * h);
  multiply_rows<DTYPE, HALVES, TILES>(f, first_row, of, sums);
  int rows = min(f.rows - first_row, TILES * 8);
  for (int i = threadIdx.x; i < rows * OUTPUTS; i += THREADS) {
    int r = i / OUTPUTS, o = i % OUTPUTS;
    if (o >= count) continue;
    float sum = sum_of<HALVES, TILES>(sums, r, o);
    if (part.bias) sum += load(part.bias, part.bias_dtype, first_output + o);
    part.out[(first_row + r) * part.out_stride + first_output + o] = sum;
  }
}

// The same outputs of two matrices, and the gate of them.
template <int DTYPE, int HALVES, int TILES> __device__ void gemv_gated(const Products &f, const Gate &gate) {
  constexpr int OUTPUTS = HALVES * 4;
  __shared__ Sums<HALVES, TILES> sums;
  int outputs = f.part[0].outputs, first_output = blockIdx.x * OUTPUTS, first_row = blockIdx.y * TILES * 8;
  Eight of[HALVES];
#pragma unroll
  for (int h = 0; h < HALVES; h++)
    of[h] = Eight::of(f.part[h / (HALVES / 2)], first_output, 8 * (h % (HALVES / 2)));
  multiply_rows<DTYPE, HALVES, TILES>(f, first_row, of, sums);
  int rows = min(f.rows - first_row, TILES * 8);
  for (int i = threadIdx.x; i < rows * OUTPUTS; i += THREADS) {
    int r = i / OUTPUTS, o = i % OUTPUTS, at = first_output + o;
    if (at >= outputs) continue;
    float both[2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
      const Part &part = f.part[m];
      both[m] = sum_of<HALVES, TILES>(sums, r, m * OUTPUTS + o);
      if (part.bias) both[m] += load(part.bias, part.bias_dtype, at);
      part.out[(first_row + r) * part.out_stride + at] = both[m];
    }
    float y = activation(gate.f, both[0]) * both[1];
    gate.out[(first_row + r) * gate.stride + at] = y;
    cast(gate.shadow, first_row + r, at, y);
  }
}

// Instances by dtype, outputs of a block, and largest number of rows. Rows share a block's weights
// and blocks share the rows, so a block takes more outputs for more rows. All sum in the same order.
#define GEMV(dtype, DTYPE, outputs, rows, blocks)                                                                      \
  extern "C" __global__ void __launch_bounds__(THREADS, blocks) gemv_##dtype##_##outputs##_##rows(Products f) {             \
    gemv<DTYPE, outputs / 8, rows / 8>(f);                                                                             \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(THREADS, blocks) gemv_gated_##dtype##_##outputs##_##rows(Products f, Gate g) { \
    gemv_gated<DTYPE, outputs / 8, rows / 8>(f, g);                                                                    \
  }
GEMV(f16, F16, 16, 8, 3)
GEMV(f16, F16, 32, 8, 2)
GEMV(f16, F16, 32, 16, 2)
GEMV(f16, F16, 32, 32, 1)
GEMV(bf16, BF16, 16, 8, 3)
GEMV(bf16, BF16, 32, 8, 2)
GEMV(bf16, BF16, 32, 16, 2)
GEMV(bf16, BF16, 32, 32, 1)
