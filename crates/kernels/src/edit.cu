// Edits of an activation in place.
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

extern "C" __global__ void edit_add_matched(Mat x, Mat operand, float factor) {
  wait_for_previous();
  let_next_start();
  float *at = row(x, ROW);
  const float *u = row(operand, operand.rows == 1 ? 0 : ROW);
  float most = 0, most_x = 0;
  for (int i = threadIdx.x; i < x.cols; i += THREADS) {
    most = fmaxf(most, fabsf(u[i]));
    most_x = fmaxf(most_x, fabsf(at[i]));
  }
  most = block_max(most);
  most_x = block_max(most_x);
  if (most == 0 || most_x == 0) return;
  float squares = 0, squares_x = 0;
  for (int i = threadIdx.x; i < x.cols; i += THREADS) {
    float v = u[i] / most, w = at[i] / most_x;
    squares = fmaf(v, v, squares);
    squares_x = fmaf(w, w, squares_x);
  }
  float length = most_x * sqrtf(block_sum(squares_x));
  float share = factor * (length / sqrtf(block_sum(squares)));
  for (int i = threadIdx.x; i < x.cols; i += THREADS) at[i] = fmaf(share, u[i] / most, at[i]);
}

extern "C" __global__ void edit_clamp(Mat x, float low, float high) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c < x.cols) {
    float *at = row(x, ROW) + c;
    if (*at < low) *at = low;
    else if (*at > high) *at = high;
  }
}
