// Products of few rows at the speed of memory, on tensor cores.
//
// A block takes 32 outputs of up to 32 rows; its warps share out the inputs, 64 at a time in
// turns, and their sums are added in order. So an output is summed the same way whatever
// rows come with it, and however many. Weights go from memory straight into the registers
// that tensor cores take them from: which of 64 inputs meets which is a matter of order
// alone, so each lane takes the eight that lie together.
#include "tensor.cuh"

constexpr int FEW_OUTPUTS = 32, FEW_BLOCK = 64;
// Bytes of each output's weights that are sent for ahead of their turn.
constexpr int FEW_AHEAD = 3072;

// One of several matrices that meet the same inputs.
struct Part {
  const char *weights, *bias;
  float *out;
  long long weight_stride, out_stride;
  int outputs, bias_dtype;
};

struct Few {
  const char *x;
  long long x_stride;
  int rows, inputs, parts;
  Part part[3];
};

// What a warp multiplies at a time.
template <int TILES> struct Stage {
  uint4 weights[2][2][2];  // by sixteen outputs, eight of those, 32 inputs
  uint4 x[TILES][2];
};

template <int DTYPE, int TILES> __device__ void few(const Few &f) {
  __shared__ float sums[WARPS][TILES * 8][FEW_OUTPUTS + 1];
  int tile = blockIdx.x, p = 0;
  while (p + 1 < f.parts && tile >= (f.part[p].outputs + FEW_OUTPUTS - 1) / FEW_OUTPUTS)
    tile -= (f.part[p++].outputs + FEW_OUTPUTS - 1) / FEW_OUTPUTS;
  const Part &part = f.part[p];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int first_output = tile * FEW_OUTPUTS, first_row = blockIdx.y * TILES * 8;

  const char *weights[2][2];
  for (int m = 0; m < 2; m++)
    for (int h = 0; h < 2; h++) {
      int o = min(first_output + m * 16 + h * 8 + g, part.outputs - 1);
      weights[m][h] = part.weights + 2 * (o * part.weight_stride + 8 * t);
    }
  const char *x[TILES];
  for (int n = 0; n < TILES; n++) x[n] = f.x + 2 * ((first_row + n * 8 + g) * f.x_stride + 8 * t);

  auto load_weights = [&](Stage<TILES> &stage, int k) {
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          bool there = k + j * 32 + 8 * t < f.inputs;
          stage.weights[m][h][j] = there ? load_once(weights[m][h] + 2 * (k + j * 32)) : uint4{};
        }
  };
  auto load_x = [&](Stage<TILES> &stage, int k) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        bool there = first_row + n * 8 + g < f.rows && k + j * 32 + 8 * t < f.inputs;
        stage.x[n][j] = there ? *(const uint4 *)(x[n] + 2 * (k + j * 32)) : uint4{};
      }
  };

  constexpr int STEP = WARPS * FEW_BLOCK;
  Stage<TILES> stage, next;
  float c[2][TILES][4] = {};
  int k = warp * FEW_BLOCK;
  // Weights do not depend on what runs before; inputs do. While that is waited for, memory
  // need not stand still: a row's first weights are loaded, some more are sent for.
  let_next_start();
  load_weights(stage, k);
  if (threadIdx.x < FEW_OUTPUTS) {
    int o = min(first_output + (int)threadIdx.x, part.outputs - 1);
    int ahead = min(FEW_AHEAD, 2 * (f.inputs - STEP));
    read_soon(part.weights + 2 * (o * part.weight_stride + STEP), ahead);
  }
  wait_for_previous();
  load_x(stage, k);
  for (; k < f.inputs; k += STEP) {
    load_weights(next, k + STEP);
    load_x(next, k + STEP);
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int m = 0; m < 2; m++) {
        uint4 low = stage.weights[m][0][j], high = stage.weights[m][1][j];
#pragma unroll
        for (int n = 0; n < TILES; n++) {
          uint4 b = stage.x[n][j];
          multiply<DTYPE>(c[m][n], low.x, high.x, low.y, high.y, b.x, b.y);
          multiply<DTYPE>(c[m][n], low.z, high.z, low.w, high.w, b.z, b.w);
        }
      }
    stage = next;
  }

#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[warp][n * 8 + 2 * t + i % 2][m * 16 + g + i / 2 * 8] = c[m][n][i];
  __syncthreads();
  int rows = min(f.rows - first_row, TILES * 8);
  for (int i = threadIdx.x; i < rows * FEW_OUTPUTS; i += THREADS) {
    int r = i / FEW_OUTPUTS, o = i % FEW_OUTPUTS;
    if (first_output + o >= part.outputs) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += sums[w][r][o];
    if (part.bias) sum += load(part.bias, part.bias_dtype, first_output + o);
    part.out[(first_row + r) * part.out_stride + first_output + o] = sum;
  }
}

#define FEW(dtype, DTYPE, tiles, blocks)                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS, blocks) few_##dtype##_##tiles(Few f) { \
    few<DTYPE, tiles>(f);                                                                          \
  }
FEW(f16, F16, 1, 2)
FEW(f16, F16, 2, 2)
FEW(f16, F16, 4, 1)
FEW(bf16, BF16, 1, 2)
FEW(bf16, BF16, 2, 2)
FEW(bf16, BF16, 4, 1)
