// Activation functions.
#pragma once

#include "common.cuh"

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

enum Activation { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3 };

__device__ inline float activation(int f, float x) {
  if (f == SILU) return x * sigmoid(x);
  if (f == GELU) return x * 0.5f * erfcf(x * -0.70710678118654752f);
  if (f == GELU_TANH) return x * sigmoid(1.5957691216057308f * fmaf(x * x * x, 0.044715f, x));
  return x < 0 ? 0 : x;
}
