// Sampling of one element of a row by weight, with one block for each row.
//
// Weights are integers, so their sums are the same in any order. The result is the element at which
// the sum of weights, from the largest element down, exceeds a target. It is found digit by digit of
// a sort key.
#include "common.cuh"

constexpr int SAMPLE_THREADS = 1024, SAMPLE_WARPS = SAMPLE_THREADS / 32;
constexpr int DIGIT = 4, DIGITS = 1 << DIGIT;

typedef unsigned long long Whole;

// Parameters of a draw, with the host's layout.
struct Draw {
  float temperature;
  int top_k;
  float top_p, min_p;
  unsigned at_low, at_high;
};

// A row, its largest element, and the parameters of the weights.
struct Weighed {
  const float *from;
  int cols, place_bits;
  float largest, temperature;

  // Sort key of an element; of equal elements the lower column has the higher key.
  __device__ Whole key(float x, int place) const {
    unsigned bits = __float_as_uint(x), order = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (Whole)order << place_bits | ((1u << place_bits) - 1 - place);
  }
  __device__ int place(Whole key) const { return (1u << place_bits) - 1 - (unsigned)(key & ((1u << place_bits) - 1)); }

  // The same roundings as the host's portable code.
  __device__ Whole weight(float x) const {
    if (x == largest) return 1ull << 40;
    float y = (x - largest) / temperature * 1.44269504f;
    if (y < -41.0f) return 0;
    float whole = rintf(y), rest = y - whole, power = 1.5403531e-4f;
    power = power * rest + 1.3333558e-3f;
    power = power * rest + 9.618129e-3f;
    power = power * rest + 5.550411e-2f;
    power = power * rest + 2.402265e-1f;
    power = power * rest + 6.931472e-1f;
    power = power * rest + 1.0f;
    return __float2ull_rz(power * __int_as_float(((int)whole + 127) << 23) * 1099511627776.0f);
  }
};

// Visits every element of a row, with several loads in flight.
template <class F> __device__ inline void each(const float *from, int cols, F f) {
  constexpr int AHEAD = 8;
  for (int first = threadIdx.x; first < cols; first += AHEAD * SAMPLE_THREADS) {
    float x[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; u++) x[u] = first + u * SAMPLE_THREADS < cols ? from[first + u * SAMPLE_THREADS] : 0;
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
      if (first + u * SAMPLE_THREADS < cols) f(x[u], first + u * SAMPLE_THREADS);
  }
}

__device__ inline Whole warp_total(Whole x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__device__ inline Whole block_total(Whole x) {
  __shared__ Whole parts[SAMPLE_WARPS];
  x = warp_total(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_total(parts[threadIdx.x % 32]);
}

// Sums of weights by digit, over the block, in shared memory.
__device__ inline void add_up(Whole (&sums)[DIGITS], bool any, Whole (&parts)[SAMPLE_WARPS][DIGITS],
                              Whole (&bins)[DIGITS]) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (__any_sync(~0u, any)) {
    // Lanes exchange halves of their sums until each pair of lanes holds one.
#pragma unroll
    for (int turn = 0; turn < DIGIT; turn++)
#pragma unroll
      for (int i = 0; i < DIGITS / 2 >> turn; i++) {
        int half = DIGITS / 2 >> turn, step = 16 >> turn;
        bool upper = lane & step;
        Whole give = upper ? sums[i] : sums[i + half], keep = upper ? sums[i + half] : sums[i];
        sums[i] = keep + __shfl_xor_sync(~0u, give, step);
      }
    sums[0] += __shfl_xor_sync(~0u, sums[0], 1);
    if (lane % 2 == 0) parts[warp][lane / 2] = sums[0];
  } else if (lane < DIGITS)
    parts[warp][lane] = 0;
  __syncthreads();
  if (warp < DIGITS) {
    Whole all = warp_total(parts[lane][warp]);
    if (lane == 0) bins[warp] = all;
  }
  __syncthreads();
}

struct Found {
  Whole key, sum;
};

// Finds the element at which the sum of weights, or of counts, from the largest down first exceeds a
// target, and that sum.
template <bool COUNTED> __device__ Found find(const Weighed &row, Whole target) {
  __shared__ Whole parts[SAMPLE_WARPS][DIGITS], bins[DIGITS];
  __shared__ Found only;
  Whole prefix = 0, before = 0;
  for (int shift = 32 + row.place_bits - DIGIT;; shift -= DIGIT) {
    Whole sums[DIGITS] = {}, key_of_own = 0, own_weight = 0;
    int own = 0;
    each(row.from, row.cols, [&](float x, int i) {
      Whole key = row.key(x, i);
      if (key >> (shift + DIGIT) != prefix) return;
      Whole weight = COUNTED ? 1 : row.weight(x);
      int digit = key >> shift & (DIGITS - 1);
      own++, key_of_own = key, own_weight = weight;
      sums[digit] += weight;
    });
    int holders = __syncthreads_count(own > 0);
    bool several = __syncthreads_or(own > 1);
    if (holders == 1 && !several) {
      if (own) only = {key_of_own, before + own_weight};
      __syncthreads();
      Found found = only;
      __syncthreads();
      return found;
    }
    add_up(sums, own > 0, parts, bins);
    int digit = DIGITS - 1;
    while (digit > 0 && before + bins[digit] <= target) before += bins[digit--];
    prefix = prefix << DIGIT | digit;
    if (shift == 0) return {prefix, before + bins[digit]};
  }
}

// Finds the largest element, of equal ones the lowest column, and whether no element is NaN.
__device__ inline bool find_largest(const float *from, int cols, float &value, int &place) {
  __shared__ float values[SAMPLE_WARPS];
  __shared__ int places[SAMPLE_WARPS];
  value = -INFINITY, place = 0x7fffffff;
  bool nan = false;
  auto take = [&](float x, int at) {
    if (x > value || (x == value && at < place)) value = x, place = at;
  };
  each(from, cols, [&](float x, int i) {
    nan |= isnan(x);
    take(x, i);
  });
  auto join = [&] {
    for (int step = 16; step > 0; step /= 2) {
      float other = __shfl_xor_sync(~0u, value, step);
      take(other, __shfl_xor_sync(~0u, place, step));
    }
  };
  join();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) values[warp] = value, places[warp] = place;
  nan = __syncthreads_or(nan);
  value = values[lane], place = places[lane];
  join();
  return !nan;
}

__device__ inline int choose(const Weighed &row, const Draw &draw) {
  Whole total = 0, kept = 0, lowest = 0;
  if (draw.top_k > 0 && draw.top_k < row.cols) lowest = find<true>(row, draw.top_k - 1).key;
  Whole least = (Whole)ceil((double)draw.min_p * 1099511627776.0);
  each(row.from, row.cols, [&](float x, int i) {
    Whole weight = row.key(x, i) >= lowest ? row.weight(x) : 0;
    total += weight;
    kept += weight >= least ? weight : 0;
  });
  total = block_total(total), kept = block_total(kept);
  if (draw.top_p < 1) {
    Whole wanted = (Whole)ceil((double)draw.top_p * (double)total);
    wanted = wanted < 1 ? 1 : wanted > total ? total : wanted;
    total = find<false>(row, wanted - 1).sum;
  }
  total = min(total, kept);
  Whole at = (Whole)draw.at_high << 32 | draw.at_low;
  return row.place(find<false>(row, __umul64hi(at, total)).key);
}

// Writes −1 if the row contains NaN.
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS) sample(Mat x, Mat draws, Mat ids) {
  wait_for_previous();
  let_next_start();
  const int *words = (const int *)draws.at + ROW * draws.stride;
  Draw draw = {__int_as_float(words[0]),    words[1],           __int_as_float(words[2]),
               __int_as_float(words[3]), (unsigned)words[4], (unsigned)words[5]};
  float largest;
  int place;
  bool numbers = find_largest(row(x, ROW), x.cols, largest, place);
  if (numbers && draw.temperature != 0) {
    int place_bits = (32 - __clz(x.cols) + DIGIT - 1) / DIGIT * DIGIT;
    Weighed weighed = {row(x, ROW), x.cols, place_bits, largest, draw.temperature};
    place = choose(weighed, draw);
  }
  if (threadIdx.x == 0) ((int *)ids.at)[ROW * ids.stride] = numbers ? place : -1;
}
