// Rows looked up, added into others, taken apart; experts chosen; the largest of a row.
#include "common.cuh"

extern "C" __global__ void gather(Mat table, int dtype, Mat ids, Mat out, int accumulate, int *fault) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN, r = ROW;
  if (c >= out.cols) return;
  int from = id(ids, r, 0);
  if (bad(fault, GATHER, from < 0 || from >= table.rows)) return;
  float x = load(table.at, dtype, from * table.stride + c);
  float *to = row(out, r) + c;
  *to = accumulate ? *to + x : x;
}

extern "C" __global__ void scatter_add(Mat src, Mat ids, Mat weights, Mat out, int *fault) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c >= src.cols) return;
  for (int r = 0; r < src.rows; r++) {
    int to = id(ids, r, 0);
    if (bad(fault, SCATTER, to < 0 || to >= out.rows)) continue;
    float *at = row(out, to) + c;
    *at = fmaf(*row(weights, r), row(src, r)[c], *at);
  }
}

extern "C" __global__ void split(Mat x, int first, int stride, int width, Mat out) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c < out.cols) row(out, ROW)[c] = row(x, ROW)[first + c / width * stride + c % width];
}

// A thread for a row: experts are few.
extern "C" __global__ void route(Mat logits, int renormalise, Mat ids, Mat weights) {
  wait_for_previous();
  let_next_start();
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
constexpr int LARGEST_THREADS = 1024;

extern "C" __global__ void __launch_bounds__(LARGEST_THREADS) largest(Mat x, Mat ids) {
  __shared__ float values[LARGEST_THREADS / 32];
  __shared__ int places[LARGEST_THREADS / 32];
  wait_for_previous();
  let_next_start();
  const float *from = row(x, ROW);
  float value = -INFINITY;
  int place = 0x7fffffff;
  bool nan = false;
  auto better = [](float a, int at, float b, int than) { return a > b || (a == b && at < than); };
#pragma unroll 8
  for (int i = threadIdx.x; i < x.cols; i += LARGEST_THREADS) {
    float y = from[i];
    nan |= isnan(y);
    if (better(y, i, value, place)) value = y, place = i;
  }
  auto join = [&](int count) {
    for (int step = count / 2; step > 0; step /= 2) {
      float other = __shfl_xor_sync(~0u, value, step);
      int at = __shfl_xor_sync(~0u, place, step);
      if (better(other, at, value, place)) value = other, place = at;
    }
  };
  join(32);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) values[warp] = value, places[warp] = place;
  nan = __syncthreads_or(nan);
  if (warp > 0) return;
  value = values[lane], place = places[lane];
  join(32);
  if (lane == 0) ((int *)ids.at)[ROW * ids.stride] = nan ? -1 : place;
}
