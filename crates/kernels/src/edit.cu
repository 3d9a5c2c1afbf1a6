// Changes of an activation in place.
#include "common.cuh"

extern "C" __global__ void edit_scale(Mat x, float factor) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c < x.cols) row(x, ROW)[c] *= factor;
}

extern "C" __global__ void edit_zero(Mat x) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c < x.cols) row(x, ROW)[c] = 0;
}

extern "C" __global__ void edit_add(Mat x, Mat operand, float factor) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c < x.cols) {
    float *at = row(x, ROW) + c;
    *at = fmaf(factor, row(operand, operand.rows == 1 ? 0 : ROW)[c], *at);
  }
}

extern "C" __global__ void edit_replace(Mat x, Mat operand) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c < x.cols) row(x, ROW)[c] = row(operand, operand.rows == 1 ? 0 : ROW)[c];
}

extern "C" __global__ void edit_project_out(Mat x, Mat operand) {
  wait_for_previous();
  let_next_start();
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
