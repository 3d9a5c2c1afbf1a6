// Prefill attention on tensor cores, without the scores in memory.
//
// A block walks over the keys in tiles of 64 that start at multiples of 64. Keys that a row does not
// see do not change its result, so its bits depend only on its position. Rows of several sessions in
// one block are processed in turn.
//
// With many rows, a block takes 64 rows of a head, and a warp 16 of them. With few rows, a block takes 16
// rows and divides every step between its warps: scores by keys, weights by rows, values by columns. Both
// kernels compute each number in the same order.
#include "tensor.cuh"

constexpr int PREFILL_ROWS = 64, PREFILL_KEYS = 64, PREFILL_WARPS = 4, PREFILL_THREADS = PREFILL_WARPS * 32;
// Rows of a block with few rows, and tiles and keys of a step.
constexpr int FEW_ROWS = 16, FEW_TILES = 2, FEW_KEYS = FEW_TILES * PREFILL_KEYS;
// Warps of such a block. Half of them weigh the scores while the others copy.
constexpr int FEW_WARPS = 8, FEW_THREADS = FEW_WARPS * 32, FEW_COPIERS = FEW_THREADS / 2;
// Warps that score a tile, and keys of each.
constexpr int FEW_SHARE = FEW_WARPS / FEW_TILES, FEW_SHARE_KEYS = PREFILL_KEYS / FEW_SHARE;
// Columns of a row of scores in shared memory. The padding avoids bank conflicts.
constexpr int FEW_COLUMNS = PREFILL_KEYS + 8;

// Tile of keys or values in shared memory, D elements each. The layout of sixteen-byte units
// avoids bank conflicts among eight keys of a column.
template <int D> __device__ inline char *tile_place(char *tile, int key, int sixteen) {
  return tile + key * (2 * D) + ((sixteen ^ (key & 7)) * 16);
}

template <int D> using TileCopy = KeyCopy<PREFILL_KEYS, PREFILL_THREADS, D / 8>;

// Consecutive rows of one session in a block, from `from` to before `next`. No row sees keys from
// `until` on.
struct RowRun {
  int from, next, sequence, lowest, until;

  __device__ inline RowRun(int from, int last, const Mat &positions, const Mat &sequences) : from(from) {
    sequence = id(sequences, from, 0);
    for (next = from + 1; next < last && id(sequences, next, 0) == sequence;) next++;
    lowest = id(positions, from, 0), until = id(positions, next - 1, 0) + 1;
  }

  __device__ inline bool is_valid(const Mat &tables, const Kv &kv, int *fault) const {
    bool outside = sequence < 0 || sequence >= tables.rows || lowest < 0 || until > tables.cols * kv.page_tokens;
    return !bad(fault, PAGE, outside);
  }

  // Position of a row; -1 if the row is not in the run.
  __device__ inline int position(const Mat &positions, int row) const {
    return row >= from && row < next ? id(positions, row, 0) : -1;
  }

  __device__ inline int first_tile(int window) const { return first_key(lowest, window) / PREFILL_KEYS * PREFILL_KEYS; }
};

// Queries of sixteen rows as the left operand. A lane holds parts of two rows, `mine`.
template <int DTYPE, int D>
__device__ inline void load_queries(unsigned (&x)[D / 16][4], const Mat &q, const int (&mine)[2], int head, int d_head) {
  int t = threadIdx.x % 4;
#pragma unroll
  for (int k = 0; k < D / 16; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int r = mine[i % 2], d = k * 16 + i / 2 * 8 + 2 * t;
      const float *at = row(q, min(r, q.rows - 1)) + head * d_head + d;
      bool there = r < q.rows && d < d_head;
      x[k][i] = there ? pack<DTYPE>(at[0], at[1]) : 0;
    }
}

// Scores of sixteen rows with 8 · EIGHTS keys from `first` on.
template <int DTYPE, int D, int EIGHTS>
__device__ inline void score_keys(float (&s)[EIGHTS][4], const unsigned (&x)[D / 16][4], char *keys, int first) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < D / 16; k++)
#pragma unroll
    for (int n = 0; n < EIGHTS / 2; n++) {
      unsigned b[4];
      load_tiles(b, tile_place<D>(keys, first + n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      multiply<DTYPE>(s[2 * n], x[k][0], x[k][1], x[k][2], x[k][3], b[0], b[1]);
      multiply<DTYPE>(s[2 * n + 1], x[k][0], x[k][1], x[k][2], x[k][3], b[2], b[3]);
    }
}

// Softmax of two rows over the tiles so far, and the values of 8 · EIGHTS columns, mixed by it.
template <int EIGHTS> struct Mix {
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, o[EIGHTS][4] = {};

  // Turns the scores of the tile at `key` into weights. A tile is `whole` if all rows see all of its keys.
  __device__ inline void weigh(float (&s)[PREFILL_KEYS / 8][4], int key, const int (&position)[2], int window,
                               float scale, bool whole) {
    int t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int first = first_key(position[h], window);
      float largest = most[h];
#pragma unroll
      for (int n = 0; n < PREFILL_KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float &score = s[n][2 * h + i];
          int at = key + n * 8 + 2 * t + i;
          score = whole || (at <= position[h] && at >= first) ? score * scale : -INFINITY;
          largest = fmaxf(largest, score);
        }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      // A row that has seen no key yet stays unchanged.
      float safe = largest == -INFINITY ? 0 : largest, less = power(most[h] - safe), part = 0;
#pragma unroll
      for (int n = 0; n < PREFILL_KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float &score = s[n][2 * h + i];
          score = power(score - safe);
          part += score;
        }
      sum[h] = fmaf(sum[h], less, part);
      most[h] = largest;
#pragma unroll
      for (int n = 0; n < EIGHTS; n++) o[n][2 * h] *= less, o[n][2 * h + 1] *= less;
    }
  }

  // Adds the values of a tile, from column 8 · `first` on, by their weights.
  template <int DTYPE, int D>
  __device__ inline void add_values(const float (&s)[PREFILL_KEYS / 8][4], char *values, int first) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < PREFILL_KEYS / 16; k++) {
      unsigned a0 = pack<DTYPE>(s[2 * k][0], s[2 * k][1]), a1 = pack<DTYPE>(s[2 * k][2], s[2 * k][3]);
      unsigned a2 = pack<DTYPE>(s[2 * k + 1][0], s[2 * k + 1][1]), a3 = pack<DTYPE>(s[2 * k + 1][2], s[2 * k + 1][3]);
#pragma unroll
      for (int n = 0; n < EIGHTS / 2; n++) {
        unsigned b[4];
        load_tiles_turned(b, tile_place<D>(values, k * 16 + lane % 16, first + 2 * n + lane / 16));
        multiply<DTYPE>(o[2 * n], a0, a1, a2, a3, b[0], b[1]);
        multiply<DTYPE>(o[2 * n + 1], a0, a1, a2, a3, b[2], b[3]);
      }
    }
  }

  // Adds the sums of the lanes that share a row.
  __device__ inline void add_lanes() {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
      sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
    }
  }

  // Writes the columns from 8 · `first` on of the rows that have a position.
  __device__ inline void write(const int (&mine)[2], const int (&position)[2], int head, int first, int d_head,
                               const Mat &out, const Shadow &shadow) {
    int t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (position[h] < 0) continue;
#pragma unroll
      for (int n = 0; n < EIGHTS; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          int d = (first + n) * 8 + 2 * t + i;
          if (d >= d_head) continue;
          float y = o[n][2 * h + i] / sum[h];
          row(out, mine[h])[head * d_head + d] = y;
          cast(shadow, mine[h], head * d_head + d, y);
        }
    }
  }
};

__device__ inline float log2_scale(const Attend &how) { return how.scale * 1.4426950408889634f; }

template <int DTYPE, int D>
__device__ void attend_prefill(const Mat &q, const Mat &positions, const Mat &sequences, const Mat &tables, const Kv &kv,
                            const Attend &how, const Mat &out, const Shadow &shadow, int *fault) {
  DYNAMIC_SHARED(memory);
  constexpr int TILE = PREFILL_KEYS * D * 2;
  auto keys = [&](int stage) { return memory + stage * TILE; };
  auto values = [&](int stage) { return memory + (2 + stage) * TILE; };
  wait_for_previous();
  let_next_start();

  int head = blockIdx.x, kv_head = head / (how.heads / kv.kv_heads);
  // The blocks with the most keys start first, so that short ones fill in at the end.
  int first_row = (gridDim.y - 1 - blockIdx.y) * PREFILL_ROWS, last_row = min(first_row + PREFILL_ROWS, q.rows);
  int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  int mine[2] = {first_row + warp * 16 + g, first_row + warp * 16 + g + 8};
  unsigned x[D / 16][4];
  load_queries<DTYPE, D>(x, q, mine, head, kv.d_head);
  float scale = log2_scale(how);

  for (int from = first_row; from < last_row;) {
    RowRun run(from, last_row, positions, sequences);
    from = run.next;
    if (!run.is_valid(tables, kv, fault)) continue;
    int position[2] = {run.position(positions, mine[0]), run.position(positions, mine[1])};
    Mix<D / 8> mix;
    int key = run.first_tile(how.window);

    __syncthreads();
    auto copy = [&](int stage, int first) {
      TileCopy<D> tile(threadIdx.x);
      tile.look_up(kv, tables, run.sequence, first, 0, run.until, fault);
      tile.start(keys(stage), values(stage), kv, kv_head, first, -1, tile_place<D>);
    };
    copy(0, key);
    for (int stage = 0; key < run.until; key += PREFILL_KEYS, stage ^= 1) {
      if (key + PREFILL_KEYS < run.until) copy(stage ^ 1, key + PREFILL_KEYS);
      else close_group();
      wait_groups<1>();
      __syncthreads();
      float s[PREFILL_KEYS / 8][4] = {};
      score_keys<DTYPE, D>(s, x, keys(stage), 0);
      bool whole = key + PREFILL_KEYS <= run.lowest + 1 && how.window == 0 && run.next - run.from == PREFILL_ROWS;
      mix.weigh(s, key, position, how.window, scale, whole);
      mix.template add_values<DTYPE, D>(s, values(stage), 0);
      __syncthreads();
    }
    mix.add_lanes();
    mix.write(mine, position, head, 0, kv.d_head, out, shadow);
  }
}

// Numbers that the warps of a block with few rows exchange.
struct FewExchange {
  float scores[FEW_TILES][FEW_ROWS][FEW_COLUMNS];
  unsigned short weights[FEW_TILES][FEW_ROWS][FEW_COLUMNS];
  float largest[FEW_TILES][FEW_SHARE][FEW_ROWS];
  // Factors of the sums before each tile.
  float less[FEW_TILES][FEW_ROWS];
  // Sums of a lane's weights of the first tile, and of all weights of a row in the end.
  float part[FEW_ROWS][4], sum[FEW_ROWS];
};
static_assert(sizeof(FewExchange) == 14784, "the host reserves this memory");

// Scores a warp's keys of the step at `key`, and writes the scores that the rows see.
template <int DTYPE, int D>
__device__ inline void score_step(FewExchange &shared, const unsigned (&x)[D / 16][4], char *keys, int key,
                                  const int (&position)[2], int window, float scale) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int tile = warp / FEW_SHARE, part = warp % FEW_SHARE, first = part * FEW_SHARE_KEYS;
  float s[FEW_SHARE_KEYS / 8][4] = {};
  score_keys<DTYPE, D>(s, x, keys, tile * PREFILL_KEYS + first);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int row = g + 8 * h, lowest = first_key(position[h], window);
    float largest = -INFINITY;
#pragma unroll
    for (int n = 0; n < FEW_SHARE_KEYS / 8; n++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float &score = s[n][2 * h + i];
        int at = key + tile * PREFILL_KEYS + first + n * 8 + 2 * t + i;
        score = at <= position[h] && at >= lowest ? score * scale : -INFINITY;
        largest = fmaxf(largest, score);
      }
      *(float2 *)&shared.scores[tile][row][first + n * 8 + 2 * t] = {s[n][2 * h], s[n][2 * h + 1]};
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    if (t == 0) shared.largest[tile][part][row] = largest;
  }
}

// Softmax of one row over the steps so far. Four lanes of a warp share a row of a tile. The warps of the
// first tile and those of the second follow the largest score; the sum belongs to those of the second.
struct FewSoftmax {
  int tile, row, t;
  float most = -INFINITY, sum = 0, before[FEW_TILES], part;

  __device__ inline FewSoftmax() {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    tile = warp / 2, row = warp % 2 * 8 + lane / 4, t = lane % 4;
  }

  // Turns the scores of the warp's tile into weights.
  template <int DTYPE> __device__ inline void weigh(FewExchange &shared) {
    float safe = 0;
#pragma unroll
    for (int i = 0; i < FEW_TILES; i++) {
      float largest = most;
#pragma unroll
      for (int p = 0; p < FEW_SHARE; p++) largest = fmaxf(largest, shared.largest[i][p][row]);
      // A row that has seen no key yet stays unchanged.
      float shift = largest == -INFINITY ? 0 : largest;
      before[i] = power(most - shift);
      if (i == tile) safe = shift;
      most = largest;
    }
    part = 0;
#pragma unroll
    for (int n = 0; n < PREFILL_KEYS / 8; n++) {
      float2 scores = *(float2 *)&shared.scores[tile][row][n * 8 + 2 * t];
      float first = power(scores.x - safe), second = power(scores.y - safe);
      part += first;
      part += second;
      *(unsigned *)&shared.weights[tile][row][n * 8 + 2 * t] = pack<DTYPE>(first, second);
    }
    if (t == 0) shared.less[tile][row] = before[tile];
    if (tile == 0) shared.part[row][t] = part;
  }

  // Adds the weights of the step to the sum, once the first tile's are there.
  __device__ inline void add(const FewExchange &shared) {
    sum = fmaf(sum, before[0], shared.part[row][t]);
    sum = fmaf(sum, before[1], part);
  }

  __device__ inline void write(FewExchange &shared) {
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (t == 0) shared.sum[row] = sum;
  }
};

// Adds the values of sixteen columns to a warp's sums, for the tiles of a step.
template <int DTYPE, int D>
__device__ inline void mix_step(float (&o)[2][4], const FewExchange &shared, char *values, int tiles) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
  for (int tile = 0; tile < FEW_TILES; tile++) {
    if (tile >= tiles) break;
    float less[2] = {shared.less[tile][g], shared.less[tile][g + 8]};
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) o[n][i] *= less[i / 2];
#pragma unroll
    for (int k = 0; k < PREFILL_KEYS / 16; k++) {
      unsigned a[4], b[4];
      load_tiles(a, &shared.weights[tile][lane % 16][k * 16 + lane / 16 * 8]);
      load_tiles_turned(b, tile_place<D>(values, tile * PREFILL_KEYS + k * 16 + lane % 16, 2 * warp + lane / 16));
      multiply<DTYPE>(o[0], a[0], a[1], a[2], a[3], b[0], b[1]);
      multiply<DTYPE>(o[1], a[0], a[1], a[2], a[3], b[2], b[3]);
    }
  }
}

// Copies the keys and values of steps into a ring of stages, by half of a block's threads.
template <int D> struct FewCopies {
  using StepCopy = KeyCopy<FEW_KEYS, FEW_COPIERS, D / 8>;
  const Kv &kv;
  const Mat &tables;
  const RowRun &run;
  char *memory;
  int kv_head, first, steps, stages, *fault;

  static constexpr int BYTES = FEW_KEYS * D * 2;
  __device__ inline char *keys(int stage) const { return memory + stage * 2 * BYTES; }
  __device__ inline char *values(int stage) const { return keys(stage) + BYTES; }

  __device__ inline void look_up(StepCopy &copy, int step) const {
    copy.look_up(kv, tables, run.sequence, first + step * FEW_KEYS, 0, run.until, fault);
  }

  __device__ inline void start(StepCopy &copy, int step, int stage) const {
    if (step < steps) copy.start(keys(stage), values(stage), kv, kv_head, first + step * FEW_KEYS, -1, tile_place<D>);
    else close_group();
  }

  // Starts the copies of a step, and looks up the pages of the next one meanwhile.
  __device__ inline void start_and_look_up(StepCopy &copy, int step, int stage) const {
    StepCopy next = copy;
    look_up(next, step + 1);
    start(copy, step, stage);
    copy = next;
  }

  // Fills all stages but one, and waits for the first.
  __device__ inline void begin(StepCopy &copy) const {
    look_up(copy, 0);
#pragma unroll 1
    for (int step = 0; step < stages - 1; step++) start_and_look_up(copy, step, step);
    wait_groups_up_to(stages - 2);
  }

  // Starts the copies that reuse a stage, and waits for the step after `step`.
  __device__ inline void advance(StepCopy &copy, int step, int freed) const {
    start_and_look_up(copy, step + stages - 1, freed);
    wait_groups_up_to(stages - 2);
  }
};

template <int DTYPE, int D>
__device__ void attend_prefill_few(const Mat &q, const Mat &positions, const Mat &sequences, const Mat &tables,
                                   const Kv &kv, const Attend &how, const Mat &out, const Shadow &shadow, int stages,
                                   int *fault) {
  DYNAMIC_SHARED(memory);
  FewExchange &shared = *(FewExchange *)(memory + stages * 2 * FewCopies<D>::BYTES);
  wait_for_previous();
  let_next_start();

  int head = blockIdx.x, kv_head = head / (how.heads / kv.kv_heads);
  int first_row = blockIdx.y * FEW_ROWS, last_row = min(first_row + FEW_ROWS, q.rows);
  int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  bool is_copier = threadIdx.x >= FEW_THREADS - FEW_COPIERS, mixes = warp < D / 16;
  int mine[2] = {first_row + g, first_row + g + 8};
  unsigned x[D / 16][4];
  load_queries<DTYPE, D>(x, q, mine, head, kv.d_head);
  float scale = log2_scale(how);

  for (int from = first_row; from < last_row;) {
    RowRun run(from, last_row, positions, sequences);
    from = run.next;
    if (!run.is_valid(tables, kv, fault)) continue;
    int position[2] = {run.position(positions, mine[0]), run.position(positions, mine[1])};
    int first = run.first_tile(how.window), tiles = (run.until - first + PREFILL_KEYS - 1) / PREFILL_KEYS;
    int steps = (tiles + FEW_TILES - 1) / FEW_TILES;
    FewCopies<D> copies = {kv, tables, run, memory, kv_head, first, steps, stages, fault};
    typename FewCopies<D>::StepCopy copy(threadIdx.x % FEW_COPIERS);
    FewSoftmax softmax;
    Mix<2> mix;
    auto score = [&](int step, int stage) {
      score_step<DTYPE, D>(shared, x, copies.keys(stage), first + step * FEW_KEYS, position, how.window, scale);
    };

    // The warps have left the memory of the session before this one.
    __syncthreads();
    if (is_copier) copies.begin(copy);
    __syncthreads();
    score(0, 0);
    __syncthreads();
    for (int step = 0, stage = 0; step < steps; step++) {
      int next = stage + 1 == stages ? 0 : stage + 1, freed = stage == 0 ? stages - 1 : stage - 1;
      if (is_copier) copies.advance(copy, step, freed);
      else softmax.template weigh<DTYPE>(shared);
      // The weights of this step and the keys of the next one are there.
      __syncthreads();
      if (!is_copier && softmax.tile == 1) softmax.add(shared);
      if (step + 1 < steps) score(step + 1, next);
      if (mixes) mix_step<DTYPE, D>(mix.o, shared, copies.values(stage), tiles - step * FEW_TILES);
      __syncthreads();
      stage = next;
    }
    if (!is_copier && softmax.tile == 1) softmax.write(shared);
    __syncthreads();
    mix.sum[0] = shared.sum[g], mix.sum[1] = shared.sum[g + 8];
    if (mixes) mix.write(mine, position, head, 2 * warp, kv.d_head, out, shadow);
  }
}

#define ATTEND_PREFILL(name, ...)                                                                                   \
  extern "C" __global__ void __launch_bounds__(PREFILL_THREADS)                                                     \
  attend_prefill_##name(Mat q, Mat positions, Mat sequences, Mat tables, Kv kv, Attend how, Mat out, Shadow shadow, \
                     int *fault) {                                                                               \
    attend_prefill<__VA_ARGS__>(q, positions, sequences, tables, kv, how, out, shadow, fault);                      \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(FEW_THREADS)                                                         \
  attend_prefill_few_##name(Mat q, Mat positions, Mat sequences, Mat tables, Kv kv, Attend how, Mat out,            \
                            Shadow shadow, int stages, int *fault) {                                                \
    attend_prefill_few<__VA_ARGS__>(q, positions, sequences, tables, kv, how, out, shadow, stages, fault);          \
  }
ATTEND_PREFILL(f16_64, F16, 64)
ATTEND_PREFILL(f16_128, F16, 128)
ATTEND_PREFILL(bf16_64, BF16, 64)
ATTEND_PREFILL(bf16_128, BF16, 128)
