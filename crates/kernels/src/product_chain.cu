// Products of up to 64 rows on tensor cores, at the speed of memory. Each output is one chain of sums.
//
// A tensor core adds sixteen products to a sum at a time. This kernel adds them in order of the inputs,
// as the library does for many rows, so both give the same bits. Work is therefore divided between
// outputs only. A warp takes eight or sixteen outputs of all rows, and a block as many warps as its launch
// says; other warps copy. The number of warps, the stages of the pipeline and the other rows change no bit.
#include "tensor.cuh"

// Inputs of a stage, sixteen-byte units of them, and groups that a tensor core adds at a time.
constexpr int CHAIN_INPUTS = 128, CHAIN_UNITS = CHAIN_INPUTS / 8, CHAIN_GROUPS = CHAIN_INPUTS / 16;
// Outputs that a warp multiplies at a time.
constexpr int CHAIN_OUTPUTS = 8;
// Number of threads of a block that copy.
constexpr int CHAIN_COPIERS = 128;
// Largest number of warps of a block that multiply, by sixteens of rows.
constexpr int chain_warps_max(int tiles) { return tiles > 2 ? 8 : 14; }

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
template <int DTYPE, int TILES, int EIGHTS>
__device__ inline void add_stage(float (&c)[EIGHTS][TILES][4], const char *x, const char *w) {
  constexpr int PAIRS = CHAIN_GROUPS / 2;
  Operands<TILES, EIGHTS> operands[2];
  operands[0].load(x, w, 0);
#pragma unroll
  for (int pair = 0; pair < PAIRS; pair++) {
    if (pair + 1 < PAIRS) operands[(pair + 1) % 2].load(x, w, pair + 1);
    operands[pair % 2].template add<DTYPE>(c, 0);
    operands[pair % 2].template add<DTYPE>(c, 1);
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

// Copies of a block's operands, by warps of their own, because a copy takes several instructions that would
// delay the sums of a warp. A thread copies sixteen bytes of one row of each group of eight rows. The first
// groups are inputs, the others the weights of eight outputs each.
template <int TILES, int EIGHTS> struct ChainCopies {
  static constexpr int X_GROUPS = 2 * TILES, GROUPS = X_GROUPS + chain_warps_max(TILES) * EIGHTS;
  // Rows that do not exist read the first row of inputs. Their sums are not written.
  const char *from[GROUPS];
  int groups, place, unit;

  __device__ inline ChainCopies(const Products &f, int thread, int first_tile, int tiles) {
    int row = thread / CHAIN_UNITS;
    unit = thread % CHAIN_UNITS, groups = X_GROUPS + tiles, place = chain_place(row, unit);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
      const char *at = f.x;
      if (i < X_GROUPS) {
        int r = i * 8 + row;
        if (r < f.rows) at = f.x + 2 * r * f.x_stride;
      } else if (i < groups) {
        ChainTile tile = ChainTile::of(f, first_tile + i - X_GROUPS);
        int output = tile.first + row;
        if (tile.part && output < tile.part->outputs) at = tile.part->weights + 2 * output * tile.part->weight_stride;
      }
      from[i] = at + 16 * unit;
    }
  }

  // Copies a range of groups of a step to a stage. Units past the last input are not used.
  template <int FIRST, int LAST> __device__ inline void copy(char *stage, int step, int inputs) const {
    if (step * CHAIN_INPUTS + unit * 8 >= inputs) return;
    long long offset = (long long)step * ROW_BYTES;
#pragma unroll
    for (int i = FIRST; i < LAST; i++)
      if (i < groups) copy_async(stage + i * 8 * ROW_BYTES + place, from[i] + offset, true);
  }

  __device__ inline void copy_x(char *stage, int step, int inputs) const { copy<0, X_GROUPS>(stage, step, inputs); }
  __device__ inline void copy_weights(char *stage, int step, int inputs) const {
    copy<X_GROUPS, GROUPS>(stage, step, inputs);
  }
};

// Keeps the stages of a block full. All warps of the block meet once in each step.
template <int TILES, int EIGHTS>
__device__ inline void copy_operands(const Products &f, const ChainCopies<TILES, EIGHTS> &copies, char *memory,
                                     int stage_bytes, int stages, int steps) {
  // Weights do not depend on the kernel before this one, so their copies start before the wait.
  for (int s = 0; s < stages - 1 && s < steps; s++) copies.copy_weights(memory + s * stage_bytes, s, f.inputs);
  wait_for_previous();
  for (int s = 0; s < stages - 1; s++) {
    if (s < steps) copies.copy_x(memory + s * stage_bytes, s, f.inputs);
    close_group();
  }
  for (int step = 0, stage = stages - 1; step < steps; step++) {
    wait_groups_up_to(stages - 2);
    __syncthreads();
    // The stage of the step before this one is free now.
    int next = step + stages - 1;
    if (next < steps) {
      copies.copy_x(memory + stage * stage_bytes, next, f.inputs);
      copies.copy_weights(memory + stage * stage_bytes, next, f.inputs);
    }
    close_group();
    // The block has issued all of its copies. Earlier, the next kernel would compete for memory.
    if (next == steps - 1 || (step == 0 && next >= steps)) let_next_start();
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
}

// Sums of a warp's outputs over all steps.
template <int DTYPE, int TILES, int EIGHTS>
__device__ inline void add_steps(float (&c)[EIGHTS][TILES][4], const Products &f, const char *memory, int stage_bytes,
                                 int stages, int steps) {
  constexpr int X_BYTES = 16 * TILES * ROW_BYTES, W_BYTES = EIGHTS * CHAIN_OUTPUTS * ROW_BYTES;
  int warp = threadIdx.x / 32;
  for (int step = 0, stage = 0; step < steps; step++) {
    __syncthreads();
    const char *x = memory + stage * stage_bytes, *w = x + X_BYTES + warp * W_BYTES;
    // Sums of zeros past the last input are left out.
    int groups = min(CHAIN_INPUTS, f.inputs - step * CHAIN_INPUTS) / 16;
    if (groups == CHAIN_GROUPS) add_stage<DTYPE>(c, x, w);
    else add_groups<DTYPE>(c, x, w, groups);
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
}

template <int DTYPE, int TILES, int EIGHTS> __device__ void product_chain(const Products &f, int stages) {
  DYNAMIC_SHARED(memory);
  int warps = (blockDim.x - CHAIN_COPIERS) / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int stage_bytes = (16 * TILES + warps * EIGHTS * CHAIN_OUTPUTS) * ROW_BYTES;
  int steps = (f.inputs + CHAIN_INPUTS - 1) / CHAIN_INPUTS, first_tile = blockIdx.x * warps * EIGHTS;
  if (warp >= warps) {
    ChainCopies<TILES, EIGHTS> copies(f, threadIdx.x - 32 * warps, first_tile, warps * EIGHTS);
    return copy_operands(f, copies, memory, stage_bytes, stages, steps);
  }
  float c[EIGHTS][TILES][4] = {};
  add_steps<DTYPE>(c, f, memory, stage_bytes, stages, steps);

  int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int e = 0; e < EIGHTS; e++) {
    ChainTile tile = ChainTile::of(f, first_tile + warp * EIGHTS + e);
    if (!tile.part) return;
    const Part &part = *tile.part;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int r = m * 16 + g + i / 2 * 8, o = tile.first + 2 * t + i % 2;
        if (r >= f.rows || o >= part.outputs) continue;
        float sum = c[e][m][i];
        if (part.bias) sum += load(part.bias, part.bias_dtype, o);
        part.out[r * part.out_stride + o] = sum;
      }
  }
}

// Instances by dtype, largest number of rows, outputs of a warp, and blocks of a multiprocessor. With many
// rows a warp takes sixteen outputs, because it reads all inputs from shared memory for each eight.
#define PRODUCT_CHAIN(dtype, DTYPE, rows, outputs, blocks)                                                      \
  extern "C" __global__ void __launch_bounds__(32 * chain_warps_max(rows / 16) + CHAIN_COPIERS, blocks)         \
  product_chain_##dtype##_##rows##_##outputs(const __grid_constant__ Products f, int stages) {                  \
    product_chain<DTYPE, rows / 16, outputs / 8>(f, stages);                                                    \
  }
PRODUCT_CHAIN(f16, F16, 16, 8, 2)
PRODUCT_CHAIN(f16, F16, 32, 8, 1)
PRODUCT_CHAIN(f16, F16, 64, 16, 1)
PRODUCT_CHAIN(bf16, BF16, 16, 8, 2)
PRODUCT_CHAIN(bf16, BF16, 32, 8, 1)
PRODUCT_CHAIN(bf16, BF16, 64, 16, 1)
