// Every operation of the Device trait, the simple way: one thread, warp or block for an
// output, sums in an order that depends on the output's own inputs alone. These are the
// oracles of faster ones.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// A matrix in the slab, as the host lays it out.
struct Mat {
  char *at;
  int rows, cols;
  long long stride;
};

enum DType { F32 = 0, F16 = 1, BF16 = 2, I32 = 3 };

__device__ inline float load(const char *at, int dtype, long long i) {
  if (dtype == F16) return __half2float(((const __half *)at)[i]);
  if (dtype == BF16) return __bfloat162float(((const __nv_bfloat16 *)at)[i]);
  return ((const float *)at)[i];
}

__device__ inline void store(char *at, int dtype, long long i, float x) {
  if (dtype == F16) ((__half *)at)[i] = __float2half_rn(x);
  else if (dtype == BF16) ((__nv_bfloat16 *)at)[i] = __float2bfloat16_rn(x);
  else ((float *)at)[i] = x;
}

__device__ inline float *row(const Mat &m, long long r) { return (float *)m.at + r * m.stride; }
__device__ inline int id(const Mat &m, long long r, long long c) {
  return ((const int *)m.at)[r * m.stride + c];
}

// Where a thread stands in a grid of (columns, rows).
#define COLUMN (blockIdx.x * (long long)blockDim.x + threadIdx.x)
#define ROW (long long)blockIdx.y

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

// Sums over a warp, every lane with the same result, always by the same tree.
__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__device__ inline float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// The same over a block of THREADS.
__device__ inline float block_sum(float x) {
  __shared__ float sums[WARPS];
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  float all = 0;
  for (int w = 0; w < WARPS; w++) all += sums[w];
  return all;
}

__device__ inline float block_max(float x) {
  __shared__ float most[WARPS];
  x = warp_max(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = x;
  __syncthreads();
  float all = most[0];
  for (int w = 1; w < WARPS; w++) all = fmaxf(all, most[w]);
  return all;
}

// A number from the slab that is no place: noted, and the work left undone.
__device__ inline bool bad(int *fault, int what, bool is_bad) {
  if (is_bad) atomicCAS(fault, 0, what);
  return is_bad;
}

enum Fault { GATHER = 1, SCATTER = 2, PAGE = 3 };

extern "C" __global__ void gather(Mat table, int dtype, Mat ids, Mat out, int accumulate, int *fault) {
  long long c = COLUMN, r = ROW;
  if (c >= out.cols) return;
  int from = id(ids, r, 0);
  if (bad(fault, GATHER, from < 0 || from >= table.rows)) return;
  float x = load(table.at, dtype, from * table.stride + c);
  float *to = row(out, r) + c;
  *to = accumulate ? *to + x : x;
}

extern "C" __global__ void scatter_add(Mat src, Mat ids, Mat weights, Mat out, int *fault) {
  long long c = COLUMN;
  if (c >= src.cols) return;
  for (int r = 0; r < src.rows; r++) {
    int to = id(ids, r, 0);
    if (bad(fault, SCATTER, to < 0 || to >= out.rows)) continue;
    float *at = row(out, to) + c;
    *at = fmaf(*row(weights, r), row(src, r)[c], *at);
  }
}

extern "C" __global__ void normalise(int layer, float eps, Mat x, Mat weight, int wtype, Mat bias, int btype,
                                int has_bias, Mat out) {
  const float *from = row(x, ROW);
  float *to = row(out, ROW);
  float mean = 0;
  if (layer) {
    float sum = 0;
    for (int i = threadIdx.x; i < x.cols; i += THREADS) sum += from[i];
    mean = block_sum(sum) / x.cols;
  }
  float squares = 0;
  for (int i = threadIdx.x; i < x.cols; i += THREADS) {
    float d = from[i] - mean;
    squares = fmaf(d, d, squares);
  }
  float scale = 1.0f / sqrtf(block_sum(squares) / x.cols + eps);
  for (int i = threadIdx.x; i < x.cols; i += THREADS) {
    float y = (from[i] - mean) * scale * load(weight.at, wtype, i);
    to[i] = has_bias ? y + load(bias.at, btype, i) : y;
  }
}

// Elements of a dtype in sixteen bytes.
template <int DTYPE> constexpr int VECTOR = DTYPE == F32 ? 4 : 8;

// Adds the products of one vector of weights with the inputs at the same place.
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

// Inputs that go with one vector of weights.
template <int N> __device__ inline void load_inputs(float (&x)[N], const float *at, bool aligned) {
  if (aligned) {
#pragma unroll
    for (int i = 0; i < N; i += 4) *(float4 *)&x[i] = *(const float4 *)(at + i);
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = at[i];
  }
}

// One vector of weights from anywhere: sixteen bytes at once where they lie so, else one
// by one. The numbers are the same.
template <int DTYPE> __device__ inline uint4 load_vector(const char *at, long long i, bool aligned) {
  constexpr int size = 16 / VECTOR<DTYPE>;
  if (aligned) return __ldcs((const uint4 *)(at + i * size));
  uint4 raw;
  char *to = (char *)&raw;
  for (int b = 0; b < VECTOR<DTYPE>; b++)
    for (int byte = 0; byte < size; byte++) to[b * size + byte] = at[(i + b) * size + byte];
  return raw;
}

// A warp for OUTPUTS outputs of TILE rows: rows share the weights, outputs the inputs. Lane
// l takes vectors l, l + 32, ... of sixteen bytes, in turns into DEEP sums; then what is
// left, one by one. Each row's output is summed as if it were alone.
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

// A thread for an output, in order.
template <int DTYPE>
__device__ void linear_in_out(Mat x, Mat w, Mat bias, int btype, int has_bias, Mat out) {
  long long o = COLUMN;
  if (o >= out.cols) return;
  const float *from = row(x, ROW);
  float sum = 0;
  for (int i = 0; i < x.cols; i++) sum = fmaf(from[i], load(w.at, DTYPE, i * w.stride + o), sum);
  row(out, ROW)[o] = has_bias ? sum + load(bias.at, btype, o) : sum;
}

#define LINEAR(name, ...)                                                                                \
  extern "C" __global__ void linear_##name(Mat x, Mat w, Mat bias, int btype, int has_bias, Mat out) { \
    __VA_ARGS__(x, w, bias, btype, has_bias, out);                                                       \
  }
LINEAR(out_in_f32, linear_out_in<F32, 1>)
LINEAR(out_in_f16, linear_out_in<F16, 1>)
LINEAR(out_in_bf16, linear_out_in<BF16, 1>)
LINEAR(out_in_rows_f32, linear_out_in<F32, 8>)
LINEAR(out_in_rows_f16, linear_out_in<F16, 8>)
LINEAR(out_in_rows_bf16, linear_out_in<BF16, 8>)
LINEAR(in_out_f32, linear_in_out<F32>)
LINEAR(in_out_f16, linear_in_out<F16>)
LINEAR(in_out_bf16, linear_in_out<BF16>)

extern "C" __global__ void rope_table(Mat positions, Mat frequencies, int ftype, float scale, Mat out) {
  long long i = COLUMN;
  int n = frequencies.cols;
  if (i >= n) return;
  // The product is rounded to a float first, as it is on the CPU.
  float angle = (float)id(positions, ROW, 0) * load(frequencies.at, ftype, i);
  double sine, cosine;
  sincos((double)angle, &sine, &cosine);
  row(out, ROW)[i] = (float)cosine * scale;
  row(out, ROW)[n + i] = (float)sine * scale;
}

extern "C" __global__ void rope(Mat x, Mat table, int d_head, int interleaved) {
  int n = table.cols / 2;
  long long at = COLUMN;
  long long head = at / n;
  int i = at % n;
  if (head >= x.cols / d_head) return;
  float *h = row(x, ROW) + head * d_head;
  const float *t = row(table, ROW);
  float cosine = t[i], sine = t[n + i];
  int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + n;
  float p = h[a], q = h[b];
  h[a] = p * cosine - q * sine;
  h[b] = q * cosine + p * sine;
}

// One layer's pages.
struct Kv {
  char *at;
  long long page_bytes;
  int pages, page_tokens, kv_heads, d_head, dtype;
};

// Where a token's key or value lies: its page, and the element there. Null if no page is.
__device__ inline char *page_of(const Kv &kv, const Mat &tables, int sequence, int position, int *fault) {
  bool out = sequence < 0 || sequence >= tables.rows || position < 0 || position / kv.page_tokens >= tables.cols;
  if (bad(fault, PAGE, out)) return nullptr;
  int page = id(tables, sequence, position / kv.page_tokens);
  if (bad(fault, PAGE, page < 0 || page >= kv.pages)) return nullptr;
  return kv.at + page * kv.page_bytes;
}

__device__ inline long long element(const Kv &kv, int head, int position, int value) {
  long long half = (long long)kv.kv_heads * kv.page_tokens * kv.d_head;
  return value * half + ((long long)head * kv.page_tokens + position % kv.page_tokens) * kv.d_head;
}

extern "C" __global__ void append(Mat k, Mat v, Mat positions, Mat sequences, Mat tables, Kv kv, int *fault) {
  long long c = COLUMN;
  if (c >= k.cols) return;
  int position = id(positions, ROW, 0);
  char *page = page_of(kv, tables, id(sequences, ROW, 0), position, fault);
  if (!page) return;
  int head = c / kv.d_head, d = c % kv.d_head;
  store(page, kv.dtype, element(kv, head, position, 0) + d, row(k, ROW)[c]);
  store(page, kv.dtype, element(kv, head, position, 1) + d, row(v, ROW)[c]);
}

struct Attend {
  int heads, window;  // window 0: none
  float scale;
};

// The probabilities of one row and head into p[0..count), keys from `first` on.
__device__ bool probabilities(const float *q, int sequence, int first, int count, int head, const Mat &tables,
                              const Kv &kv, float scale, float *p, int *fault) {
  float most = -INFINITY;
  for (int k = threadIdx.x; k < count; k += THREADS) {
    const char *page = page_of(kv, tables, sequence, first + k, fault);
    float score = 0;
    if (page) {
      long long at = element(kv, head, first + k, 0);
      for (int d = 0; d < kv.d_head; d++) score = fmaf(q[d], load(page, kv.dtype, at + d), score);
    }
    p[k] = score * scale;
    most = fmaxf(most, p[k]);
  }
  most = block_max(most);
  float sum = 0;
  for (int k = threadIdx.x; k < count; k += THREADS) {
    p[k] = expf(p[k] - most);
    sum += p[k];
  }
  sum = block_sum(sum);
  for (int k = threadIdx.x; k < count; k += THREADS) p[k] = p[k] / sum;
  __syncthreads();
  return true;
}

// Values mixed by p, keys in order.
__device__ void mix_values(const float *p, int sequence, int first, int count, int head, const Mat &tables,
                           const Kv &kv, float *out, int *fault) {
  for (int d = threadIdx.x; d < kv.d_head; d += THREADS) {
    float sum = 0;
    for (int k = 0; k < count; k++) {
      const char *page = page_of(kv, tables, sequence, first + k, fault);
      if (page) sum = fmaf(p[k], load(page, kv.dtype, element(kv, head, first + k, 1) + d), sum);
    }
    out[d] = sum;
  }
}

__device__ inline int first_key(int position, int window) {
  return window > 0 && window < position + 1 ? position + 1 - window : 0;
}

// A block for a row and head.
extern "C" __global__ void attend(Mat q, Mat positions, Mat sequences, Mat tables, Kv kv, Attend how, Mat out,
                                  int *fault) {
  extern __shared__ float p[];
  int head = blockIdx.x, kv_head = head / (how.heads / kv.kv_heads);
  int position = id(positions, ROW, 0), sequence = id(sequences, ROW, 0);
  if (bad(fault, PAGE, position < 0 || position >= tables.cols * kv.page_tokens)) return;
  int first = first_key(position, how.window), count = position + 1 - first;
  probabilities(row(q, ROW) + head * kv.d_head, sequence, first, count, kv_head, tables, kv, how.scale, p, fault);
  mix_values(p, sequence, first, count, kv_head, tables, kv, row(out, ROW) + head * kv.d_head, fault);
}

extern "C" __global__ void pattern(Mat q, Mat positions, Mat sequences, Mat tables, Kv kv, Attend how, Mat out,
                                   int *fault) {
  extern __shared__ float p[];
  int head = blockIdx.x, kv_head = head / (how.heads / kv.kv_heads);
  int position = id(positions, ROW, 0), sequence = id(sequences, ROW, 0);
  bool outside = position < 0 || position >= tables.cols * kv.page_tokens || position >= out.cols;
  if (bad(fault, PAGE, outside)) return;
  int first = first_key(position, how.window), count = position + 1 - first;
  probabilities(row(q, ROW) + head * kv.d_head, sequence, first, count, kv_head, tables, kv, how.scale, p, fault);
  float *to = row(out, ROW * how.heads + head);
  for (int k = threadIdx.x; k < out.cols; k += THREADS)
    to[k] = k >= first && k < first + count ? p[k - first] : 0.0f;
}

extern "C" __global__ void mix(Mat pattern, Mat positions, Mat sequences, Mat tables, Kv kv, Attend how, Mat out,
                               int *fault) {
  int head = blockIdx.x, kv_head = head / (how.heads / kv.kv_heads);
  int position = id(positions, ROW, 0), sequence = id(sequences, ROW, 0);
  bool outside = position < 0 || position >= tables.cols * kv.page_tokens || position >= pattern.cols;
  if (bad(fault, PAGE, outside)) return;
  int first = first_key(position, how.window), count = position + 1 - first;
  const float *p = row(pattern, ROW * how.heads + head) + first;
  mix_values(p, sequence, first, count, kv_head, tables, kv, row(out, ROW) + head * kv.d_head, fault);
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

enum Activation { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3 };

__device__ inline float activation(int f, float x) {
  if (f == SILU) return x * sigmoid(x);
  if (f == GELU) return x * 0.5f * (1.0f + erff(x * 0.70710678118654752f));
  if (f == GELU_TANH) return x * sigmoid(1.5957691216057308f * fmaf(x * x * x, 0.044715f, x));
  return x < 0 ? 0 : x;
}

extern "C" __global__ void activate(int f, Mat x, Mat out) {
  long long c = COLUMN;
  if (c < x.cols) row(out, ROW)[c] = activation(f, row(x, ROW)[c]);
}

extern "C" __global__ void gate(int f, Mat gate, Mat up, Mat out) {
  long long c = COLUMN;
  if (c < gate.cols) row(out, ROW)[c] = activation(f, row(gate, ROW)[c]) * row(up, ROW)[c];
}

extern "C" __global__ void add(Mat x, Mat out) {
  long long c = COLUMN;
  if (c < x.cols) row(out, ROW)[c] += row(x, ROW)[c];
}

extern "C" __global__ void split(Mat x, int first, int stride, int width, Mat out) {
  long long c = COLUMN;
  if (c < out.cols) row(out, ROW)[c] = row(x, ROW)[first + c / width * stride + c % width];
}

// A thread for a row: experts are few.
extern "C" __global__ void route(Mat logits, int renormalise, Mat ids, Mat weights) {
  long long r = COLUMN;
  if (r >= logits.rows) return;
  const float *x = row(logits, r);
  int *chosen = (int *)ids.at + r * ids.stride;
  float *w = row(weights, r);
  float most = -INFINITY, sum = 0;
  for (int e = 0; e < logits.cols; e++) most = fmaxf(most, x[e]);
  for (int e = 0; e < logits.cols; e++) sum += expf(x[e] - most);
  float kept = 0;
  // An expert is chosen if fewer than k come before it: larger, or equal and lower.
  int k = 0;
  for (int e = 0; e < logits.cols && k < ids.cols; e++) {
    int before = 0;
    for (int other = 0; other < logits.cols; other++)
      before += x[other] > x[e] || (x[other] == x[e] && other < e);
    if (before >= ids.cols) continue;
    chosen[k] = e;
    w[k] = expf(x[e] - most) / sum;
    kept += w[k];
    k++;
  }
  for (int i = 0; renormalise && i < k; i++) w[i] /= kept;
}

// A block for a row. The largest by value, then by lowest place; the first NaN as −1.
extern "C" __global__ void largest(Mat x, Mat ids) {
  __shared__ float values[THREADS];
  __shared__ int places[THREADS];
  const float *from = row(x, ROW);
  float value = -INFINITY;
  int place = 0x7fffffff;
  bool nan = false;
  for (int i = threadIdx.x; i < x.cols; i += THREADS) {
    nan |= isnan(from[i]);
    if (from[i] > value || place == 0x7fffffff) value = from[i], place = i;
  }
  values[threadIdx.x] = value;
  places[threadIdx.x] = place;
  nan = __syncthreads_or(nan);
  for (int step = THREADS / 2; step > 0; step /= 2) {
    int a = threadIdx.x, b = a + step;
    if (a < step && (values[b] > values[a] || (values[b] == values[a] && places[b] < places[a]))) {
      values[a] = values[b];
      places[a] = places[b];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) ((int *)ids.at)[ROW * ids.stride] = nan ? -1 : places[0];
}

extern "C" __global__ void edit_scale(Mat x, float factor) {
  long long c = COLUMN;
  if (c < x.cols) row(x, ROW)[c] *= factor;
}

extern "C" __global__ void edit_zero(Mat x) {
  long long c = COLUMN;
  if (c < x.cols) row(x, ROW)[c] = 0;
}

extern "C" __global__ void edit_add(Mat x, Mat operand, float factor) {
  long long c = COLUMN;
  if (c < x.cols) {
    float *at = row(x, ROW) + c;
    *at = fmaf(factor, row(operand, operand.rows == 1 ? 0 : ROW)[c], *at);
  }
}

extern "C" __global__ void edit_replace(Mat x, Mat operand) {
  long long c = COLUMN;
  if (c < x.cols) row(x, ROW)[c] = row(operand, operand.rows == 1 ? 0 : ROW)[c];
}

extern "C" __global__ void edit_project_out(Mat x, Mat operand) {
  float *at = row(x, ROW);
  const float *u = row(operand, operand.rows == 1 ? 0 : ROW);
  float most = 0;
  for (int i = threadIdx.x; i < x.cols; i += THREADS) most = fmaxf(most, fabsf(u[i]));
  most = block_max(most);
  if (most == 0) return;
  float squares = 0, dot = 0;
  for (int i = threadIdx.x; i < x.cols; i += THREADS) {
    float v = u[i] / most;
    squares = fmaf(v, v, squares);
    dot = fmaf(at[i], v, dot);
  }
  float share = block_sum(dot) / block_sum(squares);
  for (int i = threadIdx.x; i < x.cols; i += THREADS) at[i] = fmaf(-share, u[i] / most, at[i]);
}
