// Lookups of rows, scattered sums, copies of columns, and the choice of experts.
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

// One thread for each row, because there are few experts.
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
  // An expert is chosen if fewer than k precede it: larger ones, or equal ones with a lower id.
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
