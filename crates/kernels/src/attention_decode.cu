// Decode attention: one query of each session, split along the context.
//
// A block takes a unit of 64 keys, with the query heads that share them. If a context has several
// units, each leaves its partial result in memory, and the last block to finish combines them in
// order of the keys. The bits therefore depend only on the position.
#include "tensor.cuh"

constexpr int DECODE_KEYS = 64, DECODE_WARPS = 4, DECODE_THREADS = DECODE_WARPS * 32;
// Largest number of query heads of a block.
constexpr int DECODE_HEADS = 8;

// Partial results of units: sums of values, then the largest score and the sum of weights, by row,
// head and unit. A counter for each row and group of heads counts finished units.
struct Units {
  float *parts;
  int *finished;
  int count;
};

__device__ inline float *part_of(const Units &units, int heads, int d_head, int row, int head, int unit) {
  return units.parts + (((long long)row * heads + head) * units.count + unit) * (d_head + 2);
}

// Number of units whose sums are loaded while their weights are computed.
constexpr int DECODE_AHEAD = 16;

// Combines the units of a row and head in order, with few memory round trips. `room` holds two
// numbers for each thread.
__device__ inline void put_together(const Units &units, int heads, int d_head, int r, int head, int from, int until,
                                    float *room, const Mat &out, const Shadow &shadow) {
  int size = d_head + 2, t = threadIdx.x, all = until - from;
  const float *parts = part_of(units, heads, d_head, r, head, from);
  auto at = [&](int unit, int i) { return __ldcg(parts + (long long)unit * size + i); };
  float largest = t < all ? at(t, d_head) : -INFINITY, weight = t < all ? at(t, d_head + 1) : 0;
  float ahead[DECODE_AHEAD];
#pragma unroll
  for (int u = 0; u < DECODE_AHEAD; u++) ahead[u] = t < d_head && u < all ? at(u, t) : 0;
  float most = largest;
  for (int u = t + DECODE_THREADS; u < all; u += DECODE_THREADS) most = fmaxf(most, at(u, d_head));
  most = block_all<Max, DECODE_WARPS>(most);
  float *scales = room, *weights = room + DECODE_THREADS, sum = 0, sum_of_weights = 0;
  for (int first = 0; first < all; first += DECODE_THREADS) {
    int count = min(DECODE_THREADS, all - first);
    if (first > 0 && t < count) largest = at(first + t, d_head), weight = at(first + t, d_head + 1);
    __syncthreads();
    if (t < count) scales[t] = expf(largest - most), weights[t] = weight;
    __syncthreads();
    if (t >= d_head) continue;
#pragma unroll
    for (int u = 0; u < DECODE_AHEAD; u++) {
      if (u >= count) break;
      sum_of_weights = fmaf(scales[u], weights[u], sum_of_weights);
      sum = fmaf(scales[u], first == 0 ? ahead[u] : at(first + u, t), sum);
    }
#pragma unroll 8
    for (int u = DECODE_AHEAD; u < count; u++) {
      sum_of_weights = fmaf(scales[u], weights[u], sum_of_weights);
      sum = fmaf(scales[u], at(first + u, t), sum);
    }
  }
  __syncthreads();
  if (t >= d_head) return;
  float y = sum / sum_of_weights;
  row(out, r)[head * d_head + t] = y;
  cast(shadow, r, head * d_head + t, y);
}

// Keys and values that are not in their pages yet. Keys and queries are still to be rotated.
// Absent if all that is done already.
struct Fresh {
  Mat k, v, table;
  int interleaved;
};

// Element of a head after the rotation.
__device__ inline float turned(const float *head, const Fresh &fresh, int r, int d) {
  int n = fresh.table.cols / 2;
  if (d >= 2 * n) return head[d];
  int i = fresh.interleaved ? d / 2 : d < n ? d : d - n;
  bool is_second = fresh.interleaved ? d % 2 : d >= n;
  float p = head[fresh.interleaved ? 2 * i : i], q = head[fresh.interleaved ? 2 * i + 1 : i + n];
  float cosine = row(fresh.table, r)[i], sine = row(fresh.table, r)[n + i];
  return is_second ? q * cosine + p * sine : p * cosine - q * sine;
}

// Counts a finished block, and returns how many finished before it. Their partial results are
// visible afterwards.
__device__ inline int count_block(int *counter) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// LANES lanes hold a key, with eight elements each.
template <int DTYPE, int LANES>
__device__ void attend_decode(const Mat &q, const Mat &positions, const Mat &sequences, const Mat &tables, const Kv &kv,
                           const Attend &how, const Fresh &fresh, const Mat &out, const Units &units,
                           const Shadow &shadow, int *fault) {
  constexpr int AT_ONCE = 32 / LANES, TURNS = DECODE_KEYS / (DECODE_WARPS * AT_ONCE), TILE = DECODE_KEYS * LANES * 16;
  // Keys and values. The warps' mixed values later reuse the memory of the keys.
  __shared__ __align__(16) char keys[TILE], values[TILE];
  __shared__ __align__(16) float queries[DECODE_HEADS][LANES * 8];
  __shared__ float scores[DECODE_HEADS][DECODE_KEYS];
  __shared__ float most_of[DECODE_HEADS], sum_of[DECODE_HEADS];
  __shared__ bool is_last;

  int r = blockIdx.z, unit = blockIdx.x, group = how.heads / kv.kv_heads;
  int chunks = (group + DECODE_HEADS - 1) / DECODE_HEADS, kv_head = blockIdx.y / chunks, chunk = blockIdx.y % chunks;
  int first_head = kv_head * group + chunk * DECODE_HEADS, heads = min(DECODE_HEADS, group - chunk * DECODE_HEADS);
  int position = id(positions, r, 0), sequence = id(sequences, r, 0);
  bool outside =
      sequence < 0 || sequence >= tables.rows || position < 0 || position >= tables.cols * kv.page_tokens;
  if (bad(fault, PAGE, outside)) return;
  int first = first_key(position, how.window), from = first / DECODE_KEYS, until = position / DECODE_KEYS + 1;
  if (unit < from || unit >= until) return;
  bool alone = until - from == 1;

  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, lane_of = lane % LANES, key_of = lane / LANES;
  auto place = [](char *tile, int key, int sixteen) { return tile + (key * LANES + sixteen) * 16; };
  // Keys of earlier tokens and the page tables were written before this pass. This token's own key
  // comes from the kernel before this one, in memory or in its page.
  KeyCopy<DECODE_KEYS, DECODE_THREADS, LANES> copy(threadIdx.x);
  copy.look_up(kv, tables, sequence, unit * DECODE_KEYS, first, position, fault);
  copy.start(keys, values, kv, kv_head, unit * DECODE_KEYS, position, place);
  int own_key = position - unit * DECODE_KEYS;
  bool is_newest = own_key < DECODE_KEYS;
  char *page = is_newest ? page_of(kv, tables, sequence, position, fault) : nullptr;
  bool is_fresh = fresh.k.at;
  wait_for_previous();
  let_next_start();
  int own_d = threadIdx.x;
  bool is_own = is_fresh && page && own_d < LANES * 8;
  float own = 0;
  if (is_own) {
    bool there = own_d < kv.d_head;
    int at = kv_head * kv.d_head;
    own = there ? turned(row(fresh.k, r) + at, fresh, r, own_d) : 0;
    float value = there ? row(fresh.v, r)[at + own_d] : 0;
    store(place(keys, own_key, own_d / 8), DTYPE, own_d % 8, own);
    store(place(values, own_key, own_d / 8), DTYPE, own_d % 8, value);
    if (there) {
      store(page, DTYPE, element(kv, kv_head, position, 0) + own_d, own);
      store(page, DTYPE, element(kv, kv_head, position, 1) + own_d, value);
    }
  } else if (page && !is_fresh && threadIdx.x < 2 * LANES) {
    int sixteen = threadIdx.x % LANES, is_value = threadIdx.x / LANES;
    bool there = sixteen * 8 < kv.d_head;
    const char *at = page + 2 * (element(kv, kv_head, position, is_value) + sixteen * 8);
    *(uint4 *)place(is_value ? values : keys, own_key, sixteen) = there ? *(const uint4 *)at : uint4{};
  }
  for (int i = threadIdx.x; i < heads * LANES * 8; i += DECODE_THREADS) {
    int h = i / (LANES * 8), d = i % (LANES * 8);
    const float *head = row(q, r) + (first_head + h) * kv.d_head;
    queries[h][d] = d >= kv.d_head ? 0 : is_fresh ? turned(head, fresh, r, d) : head[d];
  }
  wait_groups<0>();
  __syncthreads();
  // No other block reads this key from here. The last block that reads the queries writes them back.
  if (is_own && own_d < kv.d_head) row(fresh.k, r)[kv_head * kv.d_head + own_d] = own;
  auto leave_queries = [&] {
    if (!is_fresh) return;
    for (int i = threadIdx.x; i < heads * kv.d_head; i += DECODE_THREADS)
      row(q, r)[first_head * kv.d_head + i] = queries[i / kv.d_head][i % kv.d_head];
  };
  auto place_of = [&](int i) { return (i * DECODE_WARPS + warp) * AT_ONCE + key_of; };
  auto load_key = [&](const char *tile, int i) { return *(const uint4 *)(tile + (place_of(i) * LANES + lane_of) * 16); };
#pragma unroll 1
  for (int h = 0; h < heads; h++) {
    float x[8];
    *(float4 *)x = *(const float4 *)&queries[h][lane_of * 8];
    *(float4 *)(x + 4) = *(const float4 *)&queries[h][lane_of * 8 + 4];
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      uint4 key = load_key(keys, i);
      const unsigned *pairs = &key.x;
      float score = 0;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float2 pair = unpack<DTYPE>(pairs[e]);
        score = fmaf(x[2 * e], pair.x, score);
        score = fmaf(x[2 * e + 1], pair.y, score);
      }
#pragma unroll
      for (int step = LANES / 2; step > 0; step /= 2) score += __shfl_xor_sync(~0u, score, step);
      int at = unit * DECODE_KEYS + place_of(i);
      if (lane_of == 0) scores[h][place_of(i)] = at > position || at < first ? -INFINITY : score * how.scale;
    }
  }
  __syncthreads();
  for (int h = warp; h < heads; h += DECODE_WARPS) {
    float a = scores[h][lane], b = scores[h][lane + 32];
    float most = warp_max(fmaxf(a, b));
    a = expf(a - most), b = expf(b - most);
    scores[h][lane] = a, scores[h][lane + 32] = b;
    float sum = warp_sum(a + b);
    if (lane == 0) most_of[h] = most, sum_of[h] = sum;
  }
  __syncthreads();
  float *mixed = (float *)keys;
#pragma unroll 1
  for (int h = 0; h < heads; h++) {
    float sums[8] = {};
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      float p = scores[h][place_of(i)];
      uint4 value = load_key(values, i);
      const unsigned *pairs = &value.x;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float2 pair = unpack<DTYPE>(pairs[e]);
        sums[2 * e] = fmaf(p, pair.x, sums[2 * e]);
        sums[2 * e + 1] = fmaf(p, pair.y, sums[2 * e + 1]);
      }
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
#pragma unroll
      for (int step = LANES; step < 32; step *= 2) sums[e] += __shfl_xor_sync(~0u, sums[e], step);
      if (key_of == 0) mixed[(warp * DECODE_HEADS + h) * LANES * 8 + lane_of * 8 + e] = sums[e];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < heads * kv.d_head; i += DECODE_THREADS) {
    int h = i / kv.d_head, d = i % kv.d_head, head = first_head + h;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < DECODE_WARPS; w++) sum += mixed[(w * DECODE_HEADS + h) * LANES * 8 + d];
    if (alone) {
      float y = sum / sum_of[h];
      row(out, r)[head * kv.d_head + d] = y;
      cast(shadow, r, head * kv.d_head + d, y);
      continue;
    }
    float *part = part_of(units, how.heads, kv.d_head, r, head, unit);
    part[d] = sum;
    if (d == 0) part[kv.d_head] = most_of[h], part[kv.d_head + 1] = sum_of[h];
  }
  if (alone) return leave_queries();

  __syncthreads();
  if (threadIdx.x == 0) {
    int *finished = units.finished + (long long)r * gridDim.y + blockIdx.y;
    is_last = count_block(finished) == until - from - 1;
    // Resets the counter for the next launch.
    if (is_last) *finished = 0;
  }
  __syncthreads();
  if (!is_last) return;
  leave_queries();
  for (int h = 0; h < heads; h++)
    put_together(units, how.heads, kv.d_head, r, first_head + h, from, until, (float *)values, out, shadow);
}

#define ATTEND_DECODE(name, ...)                                                                                         \
  extern "C" __global__ void __launch_bounds__(DECODE_THREADS)                                                           \
  attend_decode_##name(Mat q, Mat positions, Mat sequences, Mat tables, Kv kv, Attend how, Fresh fresh, Mat out,    \
                    Units units, Shadow shadow, int *fault) {                                                         \
    attend_decode<__VA_ARGS__>(q, positions, sequences, tables, kv, how, fresh, out, units, shadow, fault);             \
  }
// Instances by dtype and largest number of elements of a head.
ATTEND_DECODE(f16_64, F16, 8)
ATTEND_DECODE(f16_128, F16, 16)
ATTEND_DECODE(bf16_64, BF16, 8)
ATTEND_DECODE(bf16_128, BF16, 16)
