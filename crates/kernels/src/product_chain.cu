// Products of up to 64 rows on tensor cores, at the speed of memory. Each output is one chain of sums.
//
// A tensor core adds sixteen products to a sum at a time. This kernel adds them in order of the inputs,
// as the library does for many rows, so both give the same bits. Work is therefore divided between
// outputs only. A warp takes eight or sixteen outputs of all rows, and a block as many warps as its launch
// says. The number of warps, the stages of the pipeline and the other rows change no bit.
#include "tensor.cuh"

// Inputs of a stage, and sixteen-byte units of them.
constexpr int CHAIN_INPUTS = 128, CHAIN_UNITS = CHAIN_INPUTS / 8;
// Outputs that a warp multiplies at a time.
constexpr int CHAIN_OUTPUTS = 8;

// Eight outputs of one of the matrices.
struct ChainTile {
  const Part *part;
  int first;

  __device__ static ChainTile of(const Products &f, int tile) {
    int p = 0;
    while (p < f.parts) {
      int tiles = (f.part[p].outputs + CHAIN_OUTPUTS - 1) / CHAIN_OUTPUTS;
      if (tile < tiles) return {&f.part[p], tile * CHAIN_OUTPUTS};
      tile -= tiles;
      p++;
    }
    return {nullptr, 0};
  }
};

// Place of sixteen bytes in a tile with rows of a stage. The layout avoids bank conflicts among eight
// rows.
__device__ inline char *chain_place(char *tile, int row, int unit) {
  return tile + row * (2 * CHAIN_INPUTS) + ((unit ^ (row & 7)) * 16);
}

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

template <int DTYPE, int TILES, int EIGHTS> __device__ void product_chain(const Products &f, int stages) {
  DYNAMIC_SHARED(memory);
  constexpr int ROWS = 16 * TILES, ROW_BYTES = 2 * CHAIN_INPUTS, X_BYTES = ROWS * ROW_BYTES;
  // Each half of a warp copies a row of weights at a time.
  constexpr int COPIES = CHAIN_OUTPUTS / 2;
  constexpr int W_BYTES = EIGHTS * CHAIN_OUTPUTS * ROW_BYTES;
  int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int stage_bytes = X_BYTES + warps * W_BYTES;
  int steps = (f.inputs + CHAIN_INPUTS - 1) / CHAIN_INPUTS;
  ChainTile tiles[EIGHTS];
  const char *weights[EIGHTS][COPIES];
  bool exists[EIGHTS][COPIES];
  int unit = lane % CHAIN_UNITS;
#pragma unroll
  for (int e = 0; e < EIGHTS; e++) {
    tiles[e] = ChainTile::of(f, (blockIdx.x * warps + warp) * EIGHTS + e);
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
      int output = tiles[e].first + 2 * i + lane / CHAIN_UNITS;
      const Part *part = tiles[e].part;
      exists[e][i] = part && output < part->outputs;
      weights[e][i] = exists[e][i] ? part->weights + 2 * (output * part->weight_stride + unit * 8) : f.x;
    }
  }

  auto weights_of = [&](int stage) { return memory + stage * stage_bytes + X_BYTES + warp * W_BYTES; };
  auto copy_weights = [&](int stage, int step) {
    bool inside = step * CHAIN_INPUTS + unit * 8 < f.inputs;
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
#pragma unroll
      for (int i = 0; i < COPIES; i++) {
        bool there = inside && exists[e][i];
        const char *from = there ? weights[e][i] + (long long)step * ROW_BYTES : f.x;
        int row = e * CHAIN_OUTPUTS + 2 * i + lane / CHAIN_UNITS;
        copy_async(chain_place(weights_of(stage), row, unit), from, there);
      }
  };
  auto copy_x = [&](int stage, int step) {
    for (int i = threadIdx.x; i < ROWS * CHAIN_UNITS; i += blockDim.x) {
      int r = i / CHAIN_UNITS, u = i % CHAIN_UNITS, k = step * CHAIN_INPUTS + u * 8;
      bool there = r < f.rows && k < f.inputs;
      const char *from = there ? f.x + 2 * (r * f.x_stride + k) : f.x;
      copy_async(chain_place(memory + stage * stage_bytes, r, u), from, there);
    }
  };

  // Weights do not depend on the kernel before this one, so their copies start before the wait.
  for (int s = 0; s < stages - 1 && s < steps; s++) copy_weights(s, s);
  wait_for_previous();
  for (int s = 0; s < stages - 1; s++) {
    if (s < steps) copy_x(s, s);
    close_group();
  }

  float c[EIGHTS][TILES][4] = {};
  for (int step = 0, stage = 0; step < steps; step++) {
    wait_groups_up_to(stages - 2);
    __syncthreads();
    // The stage of the step before this one is free now.
    int next = step + stages - 1, place = stage == 0 ? stages - 1 : stage - 1;
    if (next < steps) {
      copy_weights(place, next);
      copy_x(place, next);
    }
    close_group();
    // The block has issued all of its copies. Earlier, the next kernel would compete for memory.
    if (next == steps - 1 || (step == 0 && next >= steps)) let_next_start();

    const char *w = weights_of(stage), *x = memory + stage * stage_bytes;
    // Copies past the last input would add zeros, so the last stage ends with it.
    int groups = min(CHAIN_INPUTS, f.inputs - step * CHAIN_INPUTS) / 16;
#pragma unroll
    for (int pair = 0; pair < CHAIN_INPUTS / 32; pair++) {
      if (2 * pair >= groups) break;
      unsigned b[EIGHTS][4];
#pragma unroll
      for (int e = 0; e < EIGHTS; e++)
        load_tiles(b[e], chain_place((char *)w, e * CHAIN_OUTPUTS + lane % 8, 4 * pair + lane / 8));
#pragma unroll
      for (int half = 0; half < 2; half++) {
        if (2 * pair + half >= groups) break;
#pragma unroll
        for (int m = 0; m < TILES; m++) {
          unsigned a[4];
          load_tiles(a, chain_place((char *)x, m * 16 + lane % 16, 4 * pair + 2 * half + lane / 16));
#pragma unroll
          for (int e = 0; e < EIGHTS; e++)
            multiply<DTYPE>(c[e][m], a[0], a[1], a[2], a[3], b[e][2 * half], b[e][2 * half + 1]);
        }
      }
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
  }

  int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int e = 0; e < EIGHTS; e++) {
    if (!tiles[e].part) return;
    const Part &part = *tiles[e].part;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int r = m * 16 + g + i / 2 * 8, o = tiles[e].first + 2 * t + i % 2;
        if (r >= f.rows || o >= part.outputs) continue;
        float sum = c[e][m][i];
        if (part.bias) sum += load(part.bias, part.bias_dtype, o);
        part.out[r * part.out_stride + o] = sum;
      }
  }
}

// Instances by dtype, largest number of rows, and outputs of a warp. With many rows a warp takes sixteen
// outputs, because it reads all inputs from shared memory for each eight.
#define PRODUCT_CHAIN(dtype, DTYPE, rows, outputs)                                                              \
  extern "C" __global__ void __launch_bounds__(512)                                                             \
  product_chain_##dtype##_##rows##_##outputs(const __grid_constant__ Products f, int stages) {                  \
    product_chain<DTYPE, rows / 16, outputs / 8>(f, stages);                                                    \
  }
PRODUCT_CHAIN(f16, F16, 16, 8)
PRODUCT_CHAIN(f16, F16, 32, 8)
PRODUCT_CHAIN(f16, F16, 64, 16)
PRODUCT_CHAIN(bf16, BF16, 16, 8)
PRODUCT_CHAIN(bf16, BF16, 32, 8)
PRODUCT_CHAIN(bf16, BF16, 64, 16)
