// Prefill attention on tensor cores, without the scores in memory.
//
// A block takes 64 rows of a head, and a warp 16 of them. It walks over the keys in tiles of 64
// that start at multiples of 64. Keys that a row does not see do not change its result, so its
// bits depend only on its position. Rows of several sessions in one block are processed in turn.
#include "tensor.cuh"

constexpr int PREFILL_ROWS = 64, PREFILL_KEYS = 64, PREFILL_WARPS = 4, PREFILL_THREADS = PREFILL_WARPS * 32;

// Tile of keys or values in shared memory, D elements each. The layout of sixteen-byte units
// avoids bank conflicts among eight keys of a column.
template <int D> __device__ inline char *tile_place(char *tile, int key, int sixteen) {
  return tile + key * (2 * D) + ((sixteen ^ (key & 7)) * 16);
}

template <int DTYPE, int D>
__device__ void attend_prefill(const Mat &q, const Mat &positions, const Mat &sequences, const Mat &tables, const Kv &kv,
                            const Attend &how, const Mat &out, const Shadow &shadow, int *fault) {
  DYNAMIC_SHARED(memory);
  constexpr int TILE = PREFILL_KEYS * D * 2;
  auto keys = [&](int stage) { return memory + stage * TILE; };
  auto values = [&](int stage) { return memory + (2 + stage) * TILE; };
  auto place = [](char *tile, int key, int sixteen) { return tile_place<D>(tile, key, sixteen); };
  wait_for_previous();
  let_next_start();

  int head = blockIdx.x, kv_head = head / (how.heads / kv.kv_heads);
  // The blocks with the most keys start first, so that short ones fill in at the end.
  int first_row = (gridDim.y - 1 - blockIdx.y) * PREFILL_ROWS, last_row = min(first_row + PREFILL_ROWS, q.rows);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int mine[2] = {first_row + warp * 16 + g, first_row + warp * 16 + g + 8};

  unsigned x[D / 16][4];
#pragma unroll
  for (int k = 0; k < D / 16; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int r = mine[i % 2], d = k * 16 + i / 2 * 8 + 2 * t;
      const float *at = row(q, min(r, q.rows - 1)) + head * kv.d_head + d;
      bool there = r < q.rows && d < kv.d_head;
      x[k][i] = there ? pack<DTYPE>(at[0], at[1]) : 0;
    }
  float scale = how.scale * 1.4426950408889634f;

  for (int from = first_row, next; from < last_row; from = next) {
    int sequence = id(sequences, from, 0);
    for (next = from + 1; next < last_row && id(sequences, next, 0) == sequence;) next++;
    int lowest = id(positions, from, 0), highest = id(positions, next - 1, 0);
    bool outside = sequence < 0 || sequence >= tables.rows || lowest < 0 || highest >= tables.cols * kv.page_tokens;
    if (bad(fault, PAGE, outside)) continue;
    int position[2];
    for (int h = 0; h < 2; h++) {
      bool in = mine[h] >= from && mine[h] < next;
      position[h] = in ? id(positions, mine[h], 0) : -1;
    }
    float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, o[D / 8][4] = {};
    int key = first_key(lowest, how.window) / PREFILL_KEYS * PREFILL_KEYS, until = highest + 1;

    __syncthreads();
    auto copy = [&](int stage, int first) {
      copy_keys<PREFILL_KEYS, PREFILL_THREADS, D / 8>(keys(stage), values(stage), kv, tables, sequence, kv_head, first, 0,
                                                until, -1, fault, place);
    };
    copy(0, key);
    for (int stage = 0; key < until; key += PREFILL_KEYS, stage ^= 1) {
      if (key + PREFILL_KEYS < until) copy(stage ^ 1, key + PREFILL_KEYS);
      else close_group();
      wait_groups<1>();
      __syncthreads();

      float s[PREFILL_KEYS / 8][4] = {};
#pragma unroll
      for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int n = 0; n < PREFILL_KEYS / 16; n++) {
          unsigned b[4];
          load_tiles(b, tile_place<D>(keys(stage), n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
          multiply<DTYPE>(s[2 * n], x[k][0], x[k][1], x[k][2], x[k][3], b[0], b[1]);
          multiply<DTYPE>(s[2 * n + 1], x[k][0], x[k][1], x[k][2], x[k][3], b[2], b[3]);
        }

      bool whole = key + PREFILL_KEYS <= lowest + 1 && how.window == 0 && next - from == PREFILL_ROWS;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int first = first_key(position[h], how.window);
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
        for (int n = 0; n < D / 8; n++) o[n][2 * h] *= less, o[n][2 * h + 1] *= less;
      }

#pragma unroll
      for (int k = 0; k < PREFILL_KEYS / 16; k++) {
        unsigned a0 = pack<DTYPE>(s[2 * k][0], s[2 * k][1]), a1 = pack<DTYPE>(s[2 * k][2], s[2 * k][3]);
        unsigned a2 = pack<DTYPE>(s[2 * k + 1][0], s[2 * k + 1][1]), a3 = pack<DTYPE>(s[2 * k + 1][2], s[2 * k + 1][3]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
          unsigned b[4];
          load_tiles_turned(b, tile_place<D>(values(stage), k * 16 + lane % 16, 2 * n + lane / 16));
          multiply<DTYPE>(o[2 * n], a0, a1, a2, a3, b[0], b[1]);
          multiply<DTYPE>(o[2 * n + 1], a0, a1, a2, a3, b[2], b[3]);
        }
      }
      __syncthreads();
    }

#pragma unroll
    for (int h = 0; h < 2; h++) {
      sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
      sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
      if (position[h] < 0) continue;
#pragma unroll
      for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          int d = n * 8 + 2 * t + i;
          if (d >= kv.d_head) continue;
          float y = o[n][2 * h + i] / sum[h];
          row(out, mine[h])[head * kv.d_head + d] = y;
          cast(shadow, mine[h], head * kv.d_head + d, y);
        }
    }
  }
}

#define ATTEND_PREFILL(name, ...)                                                                                   \
  extern "C" __global__ void __launch_bounds__(PREFILL_THREADS)                                                     \
  attend_prefill_##name(Mat q, Mat positions, Mat sequences, Mat tables, Kv kv, Attend how, Mat out, Shadow shadow, \
                     int *fault) {                                                                               \
    attend_prefill<__VA_ARGS__>(q, positions, sequences, tables, kv, how, out, shadow, fault);                      \
  }
ATTEND_PREFILL(f16_64, F16, 64)
ATTEND_PREFILL(f16_128, F16, 128)
ATTEND_PREFILL(bf16_64, BF16, 64)
ATTEND_PREFILL(bf16_128, BF16, 128)
