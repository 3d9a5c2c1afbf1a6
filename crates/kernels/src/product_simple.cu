// Simple products: f32 weights, weights stored as [in, out], and weights whose rows do not fit
// vector loads.
#include "common.cuh"

// Number of elements of a dtype in sixteen bytes.
template <int DTYPE> constexpr int VECTOR = DTYPE == F32 ? 4 : 8;

// Adds the products of one vector of weights with the inputs at the same offset.
template <int DTYPE> __device__ inline float dot_vector(uint4 raw, const float (&x)[VECTOR<DTYPE>], float sum) {
  if constexpr (DTYPE == F32) {
    const float *w = (const float *)&raw;
#pragma unroll
    for (int i = 0; i < 4; i++) sum = fmaf(x[i], w[i], sum);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float2 pair;
      if constexpr (DTYPE == F16) pair = __half22float2(((const __half2 *)&raw)[i]);
      else pair = __bfloat1622float2(((const __nv_bfloat162 *)&raw)[i]);
      sum = fmaf(x[2 * i], pair.x, sum);
      sum = fmaf(x[2 * i + 1], pair.y, sum);
    }
  }
  return sum;
}

// Inputs of one vector of weights.
template <int N> __device__ inline void load_inputs(float (&x)[N], const float *at, bool aligned) {
  if (aligned) {
#pragma unroll
    for (int i = 0; i < N; i += 4) *(float4 *)&x[i] = *(const float4 *)(at + i);
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = at[i];
  }
}

// Loads one vector of weights from any address: sixteen bytes at once if aligned, else element by
// element, with the same result.
template <int DTYPE> __device__ inline uint4 load_vector(const char *at, long long i, bool aligned) {
  constexpr int size = 16 / VECTOR<DTYPE>;
  if (aligned) return __ldcs((const uint4 *)(at + i * size));
  uint4 raw;
  char *to = (char *)&raw;
  for (int b = 0; b < VECTOR<DTYPE>; b++)
    for (int byte = 0; byte < size; byte++) to[b * size + byte] = at[(i + b) * size + byte];
  return raw;
}

// One warp for OUTPUTS outputs of TILE rows: rows share the weights, outputs share the inputs. Lane
// l takes vectors l, l + 32, ... of sixteen bytes, in turn into DEEP sums, then the rest element by
// element. The order of summation does not depend on the other rows.
constexpr int OUTPUTS = 4;

template <int DTYPE, int TILE>
__device__ void linear_out_in(Mat x, Mat w, Mat bias, int btype, int has_bias, Mat out) {
  constexpr int V = VECTOR<DTYPE>, STEP = 32 * V, DEEP = 2;
  long long o = (blockIdx.x * (long long)WARPS + threadIdx.x / 32) * OUTPUTS;
  if (o >= out.cols) return;
  int lane = threadIdx.x % 32;
  long long first = ROW * TILE;
  const float *from[TILE];
  bool inputs_aligned = true, weights_aligned = true;
#pragma unroll
  for (int t = 0; t < TILE; t++) {
    from[t] = row(x, first + t < x.rows ? first + t : first);
    inputs_aligned &= (unsigned long long)from[t] % 16 == 0;
  }
  const char *weights[OUTPUTS];
#pragma unroll
  for (int k = 0; k < OUTPUTS; k++) {
    weights[k] = w.at + (o + k < out.cols ? o + k : o) * w.stride * (16 / V);
    weights_aligned &= (unsigned long long)weights[k] % 16 == 0;
  }
  float sums[TILE][OUTPUTS][DEEP] = {};
  int i = lane * V;
  for (; i + (DEEP - 1) * STEP + V <= x.cols; i += DEEP * STEP) {
    uint4 raw[DEEP][OUTPUTS];
#pragma unroll
    for (int d = 0; d < DEEP; d++)
#pragma unroll
      for (int k = 0; k < OUTPUTS; k++) raw[d][k] = load_vector<DTYPE>(weights[k], i + d * STEP, weights_aligned);
#pragma unroll
    for (int d = 0; d < DEEP; d++)
#pragma unroll
      for (int t = 0; t < TILE; t++) {
        float inputs[V];
        load_inputs(inputs, from[t] + i + d * STEP, inputs_aligned);
#pragma unroll
        for (int k = 0; k < OUTPUTS; k++) sums[t][k][d] = dot_vector<DTYPE>(raw[d][k], inputs, sums[t][k][d]);
      }
  }
  for (; i + V <= x.cols; i += STEP)
#pragma unroll
    for (int k = 0; k < OUTPUTS; k++) {
      uint4 raw = load_vector<DTYPE>(weights[k], i, weights_aligned);
#pragma unroll
      for (int t = 0; t < TILE; t++) {
        float inputs[V];
        load_inputs(inputs, from[t] + i, inputs_aligned);
        sums[t][k][0] = dot_vector<DTYPE>(raw, inputs, sums[t][k][0]);
      }
    }
  for (int j = x.cols / V * V + lane; j < x.cols; j += 32)
#pragma unroll
    for (int k = 0; k < OUTPUTS; k++) {
      float weight = load(weights[k], DTYPE, j);
#pragma unroll
      for (int t = 0; t < TILE; t++) sums[t][k][1] = fmaf(from[t][j], weight, sums[t][k][1]);
    }
#pragma unroll
  for (int t = 0; t < TILE; t++)
#pragma unroll
    for (int k = 0; k < OUTPUTS; k++) {
      float sum = warp_sum(sums[t][k][0] + sums[t][k][1]);
      if (lane == 0 && first + t < x.rows && o + k < out.cols)
        row(out, first + t)[o + k] = has_bias ? sum + load(bias.at, btype, o + k) : sum;
    }
}

// One thread for each output, in order of the inputs.
template <int DTYPE>
__device__ void linear_in_out(Mat x, Mat w, Mat bias, int btype, int has_bias, Mat out) {
  long long o = COLUMN;
  if (o >= out.cols) return;
  const float *from = row(x, ROW);
  float sum = 0;
  for (int i = 0; i < x.cols; i++) sum = fmaf(from[i], load(w.at, DTYPE, i * w.stride + o), sum);
  row(out, ROW)[o] = has_bias ? sum + load(bias.at, btype, o) : sum;
}

// One warp for each output of a row, at any alignment.
template <int DTYPE>
__device__ void linear_any(Mat x, Mat w, Mat bias, int btype, int has_bias, Mat out) {
  long long o = blockIdx.x * (long long)WARPS + threadIdx.x / 32;
  if (o >= out.cols) return;
  const float *from = row(x, ROW);
  float sum = 0;
  for (int i = threadIdx.x % 32; i < x.cols; i += 32) sum = fmaf(from[i], load(w.at, DTYPE, o * w.stride + i), sum);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) row(out, ROW)[o] = has_bias ? sum + load(bias.at, btype, o) : sum;
}

#define LINEAR(name, ...)                                                                                \
  extern "C" __global__ void linear_##name(Mat x, Mat w, Mat bias, int btype, int has_bias, Mat out) { \
    wait_for_previous();                                                                               \
    let_next_start();                                                                                  \
    __VA_ARGS__(x, w, bias, btype, has_bias, out);                                                       \
  }
LINEAR(out_in_f32, linear_out_in<F32, 1>)
LINEAR(out_in_rows_f32, linear_out_in<F32, 8>)
LINEAR(any_f16, linear_any<F16>)
LINEAR(any_bf16, linear_any<BF16>)
LINEAR(in_out_f32, linear_in_out<F32>)
LINEAR(in_out_f16, linear_in_out<F16>)
LINEAR(in_out_bf16, linear_in_out<BF16>)
