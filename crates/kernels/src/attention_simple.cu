// Simple attention: a block for each row and head, with the scores in shared memory.
#include "common.cuh"

// Writes the probabilities of one row and head to p[0..count), for keys from `first` on.
__device__ void probabilities(const float *q, int sequence, int first, int count, int head, const Mat &tables,
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
}

// Mixes the values by p, in order of the keys.
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

// One block for each row and head.
extern "C" __global__ void attend(Mat q, Mat positions, Mat sequences, Mat tables, Kv kv, Attend how, Mat out,
                                  int *fault) {
  wait_for_previous();
  let_next_start();
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
  wait_for_previous();
  let_next_start();
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
  wait_for_previous();
  let_next_start();
  int head = blockIdx.x, kv_head = head / (how.heads / kv.kv_heads);
  int position = id(positions, ROW, 0), sequence = id(sequences, ROW, 0);
  bool outside = position < 0 || position >= tables.cols * kv.page_tokens || position >= pattern.cols;
  if (bad(fault, PAGE, outside)) return;
  int first = first_key(position, how.window), count = position + 1 - first;
  const float *p = row(pattern, ROW * how.heads + head) + first;
  mix_values(p, sequence, first, count, kv_head, tables, kv, row(out, ROW) + head * kv.d_head, fault);
}
