// Products of up to 64 rows on tensor cores, at the speed of memory. Each output is one chain of sums.
//
// A tensor core adds sixteen products to a sum at a time. This kernel adds them in order of the inputs,
// as the library does for many rows, so both give the same bits. Work is therefore divided between
// outputs only. A warp takes eight or sixteen outputs of all rows, and a block as many warps as its launch
// says. The number of warps, the stages of the pipeline and the other rows change no bit.
#include "tensor.cuh"

// Inputs of a stage, sixteen-byte units of them, and groups that a tensor core adds at a time.
constexpr int CHAIN_INPUTS = 128, CHAIN_UNITS = CHAIN_INPUTS / 8, CHAIN_GROUPS = CHAIN_INPUTS / 16;
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

// Rows of a stage in shared memory. The place of a sixteen-byte unit in its row is its number, with the
// lowest three bits of the row flipped in, so that eight rows have no bank conflicts.
constexpr int ROW_BYTES = 2 * CHAIN_INPUTS;

__device__ inline int chain_place(int row, int unit) { return row * ROW_BYTES + ((unit ^ (row & 7)) << 4); }

// Place of a unit, from the place of another unit of the row whose number differs in the bits `flipped`.
__device__ inline int other_unit(int place, int flipped) { return place ^ (flipped << 4); }

// Operands of two groups of inputs: inputs of all rows, and weights of the outputs of a warp.
template <int TILES, int EIGHTS> struct Operands {
  unsigned a[2][TILES][4], b[EIGHTS][4];

  __device__ inline void load(const char *x, const char *w, int pair) {
    int lane = threadIdx.x % 32;
    int x_place = chain_place(lane % 16, lane / 16), w_place = chain_place(lane % 8, lane / 8);
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
      load_tiles(b[e], w + e * CHAIN_OUTPUTS * ROW_BYTES + other_unit(w_place, 4 * pair));
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int m = 0; m < TILES; m++)
        load_tiles(a[half][m], x + m * 16 * ROW_BYTES + other_unit(x_place, 4 * pair + 2 * half));
  }

  // Adds the products of one of the groups to the sums of the warp.
  template <int DTYPE> __device__ inline void add(float (&c)[EIGHTS][TILES][4], int half) const {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int e = 0; e < EIGHTS; e++)
        multiply<DTYPE>(c[e][m], a[half][m][0], a[half][m][1], a[half][m][2], a[half][m][3], b[e][2 * half],
                        b[e][2 * half + 1]);
  }
};

// Adds the products of a whole stage. The operands of the next groups load while these are multiplied.
// `meanwhile` runs beside the first multiplications.
template <int DTYPE, int TILES, int EIGHTS, class Meanwhile>
__device__ inline void add_stage(float (&c)[EIGHTS][TILES][4], const char *x, const char *w, Meanwhile meanwhile) {
  constexpr int PAIRS = CHAIN_GROUPS / 2;
  Operands<TILES, EIGHTS> operands[2];
  operands[0].load(x, w, 0);
#pragma unroll
  for (int pair = 0; pair < PAIRS; pair++) {
    if (pair + 1 < PAIRS) operands[(pair + 1) % 2].load(x, w, pair + 1);
    operands[pair % 2].template add<DTYPE>(c, 0);
    operands[pair % 2].template add<DTYPE>(c, 1);
    if (pair == 0) meanwhile();
  }
}

// Adds the products of the first `groups` groups of a stage.
template <int DTYPE, int TILES, int EIGHTS>
__device__ inline void add_groups(float (&c)[EIGHTS][TILES][4], const char *x, const char *w, int groups) {
  for (int pair = 0; 2 * pair < groups; pair++) {
    Operands<TILES, EIGHTS> operands;
    operands.load(x, w, pair);
    operands.template add<DTYPE>(c, 0);
    if (2 * pair + 1 < groups) operands.template add<DTYPE>(c, 1);
  }
}

template <int DTYPE, int TILES, int EIGHTS> __device__ void product_chain(const Products &f, int stages) {
  DYNAMIC_SHARED(memory);
  constexpr int ROWS = 16 * TILES, X_BYTES = ROWS * ROW_BYTES;
  // Each half of a warp copies a row at a time.
  constexpr int COPIES = CHAIN_OUTPUTS / 2;
  constexpr int W_BYTES = EIGHTS * CHAIN_OUTPUTS * ROW_BYTES;
  int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int stage_bytes = X_BYTES + warps * W_BYTES;
  int steps = (f.inputs + CHAIN_INPUTS - 1) / CHAIN_INPUTS;
  int unit = lane % CHAIN_UNITS, odd = lane / CHAIN_UNITS;
  ChainTile tiles[EIGHTS];
  const char *weights[EIGHTS][COPIES];
  bool exists[EIGHTS][COPIES];
#pragma unroll
  for (int e = 0; e < EIGHTS; e++) {
    tiles[e] = ChainTile::of(f, (blockIdx.x * warps + warp) * EIGHTS + e);
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
      int output = tiles[e].first + 2 * i + odd;
      const Part *part = tiles[e].part;
      exists[e][i] = part && output < part->outputs;
      weights[e][i] = exists[e][i] ? part->weights + 2 * (output * part->weight_stride + unit * 8) : f.x;
    }
  }

  auto weights_of = [&](int stage) { return memory + stage * stage_bytes + X_BYTES + warp * W_BYTES; };
  // Copies the next weights of every output. Steps are copied in order.
  int place_of_first = chain_place(odd, unit), next_input = unit * 8;
  auto copy_weights = [&](int stage) {
    char *to = weights_of(stage);
    bool inside = next_input < f.inputs;
    next_input += CHAIN_INPUTS;
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
#pragma unroll
      for (int i = 0; i < COPIES; i++) {
        bool there = inside && exists[e][i];
        int rows = e * CHAIN_OUTPUTS + 2 * i;
        copy_async(to + rows * ROW_BYTES + other_unit(place_of_first, 2 * i), there ? weights[e][i] : f.x, there);
        weights[e][i] += there ? ROW_BYTES : 0;
      }
  };
  auto copy_x = [&](int stage, int step) {
    int k = step * CHAIN_INPUTS + unit * 8;
    bool inside = k < f.inputs;
    const char *from = f.x + 2 * k;
    for (int r = 2 * warp + odd; r < ROWS; r += 2 * warps) {
      bool there = inside && r < f.rows;
      copy_async(memory + stage * stage_bytes + chain_place(r, unit), there ? from + 2 * r * f.x_stride : f.x, there);
    }
  };

  // Weights do not depend on the kernel before this one, so their copies start before the wait.
  for (int s = 0; s < stages - 1 && s < steps; s++) copy_weights(s);
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
    auto copy_next = [&] {
      if (next < steps) {
        copy_weights(place);
        copy_x(place, next);
      }
      close_group();
      // The block has issued all of its copies. Earlier, the next kernel would compete for memory.
      if (next == steps - 1 || (step == 0 && next >= steps)) let_next_start();
    };

    const char *w = weights_of(stage), *x = memory + stage * stage_bytes;
    // Copies past the last input would add zeros, so the last stage ends with it.
    int groups = min(CHAIN_INPUTS, f.inputs - step * CHAIN_INPUTS) / 16;
    if (groups == CHAIN_GROUPS) {
      add_stage<DTYPE>(c, x, w, copy_next);
    } else {
      copy_next();
      add_groups<DTYPE>(c, x, w, groups);
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
  extern "C" __global__ void __launch_bounds__(256, 2)                                                          \
  product_chain_##dtype##_##rows##_##outputs(const __grid_constant__ Products f, int stages) {                  \
    product_chain<DTYPE, rows / 16, outputs / 8>(f, stages);                                                    \
  }
PRODUCT_CHAIN(f16, F16, 16, 8)
PRODUCT_CHAIN(f16, F16, 32, 8)
PRODUCT_CHAIN(f16, F16, 64, 16)
PRODUCT_CHAIN(bf16, BF16, 16, 8)
PRODUCT_CHAIN(bf16, BF16, 32, 8)
PRODUCT_CHAIN(bf16, BF16, 64, 16)
