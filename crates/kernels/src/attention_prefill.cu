// Prefill attention on tensor cores, without the scores in memory.
//
// A block walks over the keys in tiles of 64 that start at multiples of 64. Keys that a row does not
// see do not change its result, so its bits depend only on its position. Rows of several sessions in
// one block are processed in turn.
//
// With many rows, a block takes 64 rows of a head, and a warp 16 of them. With few rows, a block takes
// 16 rows: each of its warps computes the scores of a quarter of a tile's keys, and then mixes a quarter
// of the values' columns. Both kernels compute each number in the same order.
#include "tensor.cuh"

constexpr int PREFILL_ROWS = 64, PREFILL_KEYS = 64, PREFILL_WARPS = 4, PREFILL_THREADS = PREFILL_WARPS * 32;
// Rows of a block with few rows, and the largest number of tiles that it has in shared memory.
constexpr int FEW_ROWS = 16, FEW_STAGES = 6;
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

  // Writes the columns from 8 · `first` on of the rows that have a position.
  __device__ inline void write(const int (&mine)[2], const int (&position)[2], int head, int first, int d_head,
                               const Mat &out, const Shadow &shadow) {
    int t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
      sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
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
      TileCopy<D> tile;
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
    mix.write(mine, position, head, 0, kv.d_head, out, shadow);
  }
}

template <int DTYPE, int D>
__device__ void attend_prefill_few(const Mat &q, const Mat &positions, const Mat &sequences, const Mat &tables,
                                   const Kv &kv, const Attend &how, const Mat &out, const Shadow &shadow, int stages,
                                   int *fault) {
  DYNAMIC_SHARED(memory);
  constexpr int TILE = PREFILL_KEYS * D * 2, EIGHTS = D / 8 / PREFILL_WARPS, KEYS = PREFILL_KEYS / PREFILL_WARPS;
  auto keys = [&](int stage) { return memory + stage * 2 * TILE; };
  auto values = [&](int stage) { return keys(stage) + TILE; };
  auto scores = [&](int tile) { return (float *)keys(stages) + tile % 2 * FEW_ROWS * FEW_COLUMNS; };
  wait_for_previous();
  let_next_start();

  int head = blockIdx.x, kv_head = head / (how.heads / kv.kv_heads);
  int first_row = blockIdx.y * FEW_ROWS, last_row = min(first_row + FEW_ROWS, q.rows);
  int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  int mine[2] = {first_row + g, first_row + g + 8};
  unsigned x[D / 16][4];
  load_queries<DTYPE, D>(x, q, mine, head, kv.d_head);
  float scale = log2_scale(how);

  for (int from = first_row; from < last_row;) {
    RowRun run(from, last_row, positions, sequences);
    from = run.next;
    if (!run.is_valid(tables, kv, fault)) continue;
    int position[2] = {run.position(positions, mine[0]), run.position(positions, mine[1])};
    Mix<EIGHTS> mix;
    int first = run.first_tile(how.window), tiles = (run.until - first + PREFILL_KEYS - 1) / PREFILL_KEYS;
    auto look_up = [&](TileCopy<D> &copy, int tile) {
      copy.look_up(kv, tables, run.sequence, first + tile * PREFILL_KEYS, 0, run.until, fault);
    };
    auto start = [&](TileCopy<D> &copy, int tile, int stage) {
      copy.start(keys(stage), values(stage), kv, kv_head, first + tile * PREFILL_KEYS, -1, tile_place<D>);
    };
    // Each warp scores its part of the keys.
    auto score = [&](int tile, int stage) {
      float s[KEYS / 8][4] = {};
      score_keys<DTYPE, D>(s, x, keys(stage), warp * KEYS);
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
          *(float2 *)&scores(tile)[(g + 8 * h) * FEW_COLUMNS + warp * KEYS + n * 8 + 2 * t] = {s[n][2 * h], s[n][2 * h + 1]};
    };

    // The warps have left the tiles of the session before this one.
    __syncthreads();
    TileCopy<D> first_copies[FEW_STAGES - 1];
#pragma unroll
    for (int tile = 0; tile < FEW_STAGES - 1; tile++)
      if (tile < stages - 1) look_up(first_copies[tile], tile);
#pragma unroll
    for (int tile = 0; tile < FEW_STAGES - 1; tile++)
      if (tile < stages - 1) start(first_copies[tile], tile, tile);
    TileCopy<D> copy;
    look_up(copy, stages - 1);
    wait_groups_up_to(stages - 2);
    __syncthreads();
    score(0, 0);
    for (int tile = 0, stage = 0; tile < tiles; tile++) {
      // The next tile has arrived, and this one has all of its scores.
      wait_groups_up_to(stages - 3);
      __syncthreads();
      int next = stage + 1 == stages ? 0 : stage + 1, freed = stage == 0 ? stages - 1 : stage - 1;
      if (tile + stages - 1 < tiles) start(copy, tile + stages - 1, freed);
      else close_group();
      look_up(copy, tile + stages);
      if (tile + 1 < tiles) score(tile + 1, next);

      int key = first + tile * PREFILL_KEYS;
      float s[PREFILL_KEYS / 8][4];
#pragma unroll
      for (int n = 0; n < PREFILL_KEYS / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float2 pair = *(float2 *)&scores(tile)[(g + 8 * h) * FEW_COLUMNS + n * 8 + 2 * t];
          s[n][2 * h] = pair.x, s[n][2 * h + 1] = pair.y;
        }
      bool whole = key + PREFILL_KEYS <= run.lowest + 1 && how.window == 0 && run.next - run.from == FEW_ROWS;
      mix.weigh(s, key, position, how.window, scale, whole);
      mix.template add_values<DTYPE, D>(s, values(stage), warp * EIGHTS);
      stage = next;
    }
    mix.write(mine, position, head, warp * EIGHTS, kv.d_head, out, shadow);
  }
}

#define ATTEND_PREFILL(name, ...)                                                                                   \
  extern "C" __global__ void __launch_bounds__(PREFILL_THREADS)                                                     \
  attend_prefill_##name(Mat q, Mat positions, Mat sequences, Mat tables, Kv kv, Attend how, Mat out, Shadow shadow, \
                     int *fault) {                                                                               \
    attend_prefill<__VA_ARGS__>(q, positions, sequences, tables, kv, how, out, shadow, fault);                      \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(PREFILL_THREADS)                                                     \
  attend_prefill_few_##name(Mat q, Mat positions, Mat sequences, Mat tables, Kv kv, Attend how, Mat out,            \
                            Shadow shadow, int stages, int *fault) {                                                \
    attend_prefill_few<__VA_ARGS__>(q, positions, sequences, tables, kv, how, out, shadow, stages, fault);          \
  }
ATTEND_PREFILL(f16_64, F16, 64)
ATTEND_PREFILL(f16_128, F16, 128)
ATTEND_PREFILL(bf16_64, BF16, 64)
ATTEND_PREFILL(bf16_128, BF16, 128)
