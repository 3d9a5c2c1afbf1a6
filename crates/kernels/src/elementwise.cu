// Activations, sums, normalisations and copies in another type.
#include "activation.cuh"
#include "tensor.cuh"

__device__ inline bool whole(const void *at) { return (unsigned long long)at % 16 == 0; }

// Loads four numbers at once if they are aligned. A thread always has the same four.
struct Four {
  float x[4];
};

__device__ inline Four load_four(const float *at, int first, int count, bool aligned) {
  Four four = {};
  if (aligned) *(float4 *)four.x = *(const float4 *)(at + first);
  else
    for (int i = 0; i < 4 && first + i < count; i++) four.x[i] = at[first + i];
  return four;
}

__device__ inline void store_four(float *at, int first, int count, bool aligned, const Four &four) {
  if (aligned) *(float4 *)(at + first) = *(const float4 *)four.x;
  else
    for (int i = 0; i < 4 && first + i < count; i++) at[first + i] = four.x[i];
}

// Stores four numbers into a copy, whose rows are wide enough for whole vectors.
__device__ inline void cast_four(const Shadow &to, long long r, int first, int count, const Four &four) {
  if (!to.at) return;
  if (first + 4 > count) {
    for (int i = 0; i < 4 && first + i < count; i++) cast(to, r, first + i, four.x[i]);
    return;
  }
  uint2 pairs = to.dtype == F16 ? uint2{pack<F16>(four.x[0], four.x[1]), pack<F16>(four.x[2], four.x[3])}
                                : uint2{pack<BF16>(four.x[0], four.x[1]), pack<BF16>(four.x[2], four.x[3])};
  *(uint2 *)(to.at + 2 * (r * to.stride + first)) = pairs;
}

extern "C" __global__ void activate(int f, Mat x, Mat out, Shadow shadow) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c >= x.cols) return;
  float y = activation(f, row(x, ROW)[c]);
  row(out, ROW)[c] = y;
  cast(shadow, ROW, c, y);
}

// Four elements for each thread.
extern "C" __global__ void gate(int f, Mat gate, Mat up, Mat out, Shadow shadow) {
  wait_for_previous();
  let_next_start();
  int c = COLUMN * 4, cols = gate.cols;
  if (c >= cols) return;
  const float *a = row(gate, ROW), *b = row(up, ROW);
  float *to = row(out, ROW);
  bool aligned = cols % 4 == 0 && whole(a) && whole(b) && whole(to);
  Four x = load_four(a, c, cols, aligned), y = load_four(b, c, cols, aligned);
#pragma unroll
  for (int j = 0; j < 4; j++) x.x[j] = activation(f, x.x[j]) * y.x[j];
  store_four(to, c, cols, aligned, x);
  cast_four(shadow, ROW, c, cols, x);
}

extern "C" __global__ void add(Mat x, Mat out) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c < x.cols) row(out, ROW)[c] += row(x, ROW)[c];
}

extern "C" __global__ void add_bias(Mat bias, int dtype, Mat out) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c < out.cols) row(out, ROW)[c] += load(bias.at, dtype, c);
}

// Converts the inputs of a product to the type of its weights.
extern "C" __global__ void narrow(Mat x, Shadow shadow) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c < x.cols) cast(shadow, ROW, c, row(x, ROW)[c]);
}

constexpr int NORM_WARPS = 16;

// Loads four stored weights.
__device__ inline Four load_weights(const Mat &weight, int dtype, int first, int count) {
  Four four;
#pragma unroll
  for (int i = 0; i < 4; i++) four.x[i] = first + i < count ? load(weight.at, dtype, first + i) : 0;
  return four;
}

constexpr int NORM_STEP = NORM_WARPS * 32 * 4;
// Number of vectors of a row that a thread keeps in registers. It reads the rest of longer rows
// again.
constexpr int NORM_KEPT = 4;

// One block for each row. If there is an addend, it is added to x first.
extern "C" __global__ void __launch_bounds__(NORM_WARPS * 32)
normalise(int layer, float eps, Mat x, Mat added, Mat weight, int wtype, Mat bias, int btype, int has_bias, Mat out,
          Shadow shadow) {
  float *from = row(x, ROW), *to = row(out, ROW);
  const float *more = added.at ? row(added, ROW) : nullptr;
  int cols = x.cols, first = threadIdx.x * 4;
  bool aligned = cols % 4 == 0 && whole(from) && whole(to) && whole(more);
  Four kept[NORM_KEPT], weights[NORM_KEPT];
  // Weights do not depend on the kernel before this one.
#pragma unroll
  for (int k = 0; k < NORM_KEPT; k++) weights[k] = load_weights(weight, wtype, first + k * NORM_STEP, cols);
  wait_for_previous();
  let_next_start();
  float sum = 0;
  auto take = [&](int i) {
    Four a = load_four(from, i, cols, aligned);
    if (more) {
      Four b = load_four(more, i, cols, aligned);
#pragma unroll
      for (int j = 0; j < 4; j++) a.x[j] += b.x[j];
      store_four(from, i, cols, aligned, a);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) sum += a.x[j];
    return a;
  };
#pragma unroll
  for (int k = 0; k < NORM_KEPT; k++)
    if (first + k * NORM_STEP < cols) kept[k] = take(first + k * NORM_STEP);
  for (int i = first + NORM_KEPT * NORM_STEP; i < cols; i += NORM_STEP) take(i);

  float mean = layer ? block_all<Sum, NORM_WARPS>(sum) / cols : 0, squares = 0;
  auto square = [&](const Four &a, int i) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float d = i + j < cols ? a.x[j] - mean : 0;
      squares = fmaf(d, d, squares);
    }
  };
#pragma unroll
  for (int k = 0; k < NORM_KEPT; k++)
    if (first + k * NORM_STEP < cols) square(kept[k], first + k * NORM_STEP);
  for (int i = first + NORM_KEPT * NORM_STEP; i < cols; i += NORM_STEP)
    square(load_four(from, i, cols, aligned), i);

  float scale = 1.0f / sqrtf(block_all<Sum, NORM_WARPS>(squares) / cols + eps);
  auto give = [&](Four a, const Four &w, int i) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      a.x[j] = (a.x[j] - mean) * scale * w.x[j];
      if (has_bias && i + j < cols) a.x[j] += load(bias.at, btype, i + j);
    }
    store_four(to, i, cols, aligned, a);
    cast_four(shadow, ROW, i, cols, a);
  };
#pragma unroll
  for (int k = 0; k < NORM_KEPT; k++)
    if (first + k * NORM_STEP < cols) give(kept[k], weights[k], first + k * NORM_STEP);
  for (int i = first + NORM_KEPT * NORM_STEP; i < cols; i += NORM_STEP)
    give(load_four(from, i, cols, aligned), load_weights(weight, wtype, i, cols), i);
}
