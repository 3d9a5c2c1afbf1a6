// Rotary positions, and the append of keys and values to their pages.
#include "common.cuh"

extern "C" __global__ void rope_table(Mat positions, Mat frequencies, int ftype, float scale, Mat out) {
  wait_for_previous();
  let_next_start();
  long long i = COLUMN;
  int n = frequencies.cols;
  if (i >= n) return;
  // The product is rounded to a float first, as on the CPU.
  float angle = (float)id(positions, ROW, 0) * load(frequencies.at, ftype, i);
  double sine, cosine;
  sincos((double)angle, &sine, &cosine);
  row(out, ROW)[i] = (float)cosine * scale;
  row(out, ROW)[n + i] = (float)sine * scale;
}

extern "C" __global__ void rope(Mat x, Mat table, int d_head, int interleaved) {
  wait_for_previous();
  let_next_start();
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

extern "C" __global__ void append(Mat k, Mat v, Mat positions, Mat sequences, Mat tables, Kv kv, int *fault) {
  wait_for_previous();
  let_next_start();
  long long c = COLUMN;
  if (c >= k.cols) return;
  int position = id(positions, ROW, 0);
  char *page = page_of(kv, tables, id(sequences, ROW, 0), position, fault);
  if (!page) return;
  int head = c / kv.d_head, d = c % kv.d_head;
  store(page, kv.dtype, element(kv, head, position, 0) + d, row(k, ROW)[c]);
  store(page, kv.dtype, element(kv, head, position, 1) + d, row(v, ROW)[c]);
}

// Rotates queries and keys and appends keys and values in one kernel. A block takes one row and
// looks up its page once. A thread takes two elements of a head of q, k or v at a time; elements
// that are not rotated are taken in pairs too.
extern "C" __global__ void rope_append(Mat q, Mat k, Mat v, Mat table, int interleaved, Mat positions, Mat sequences,
                                       Mat tables, Kv kv, int *fault) {
  wait_for_previous();
  let_next_start();
  int half = kv.d_head / 2, heads = q.cols / kv.d_head, n = table.cols / 2;
  int position = id(positions, ROW, 0);
  char *page = page_of(kv, tables, id(sequences, ROW, 0), position, fault);
  const float *t = row(table, ROW);
  float *rows[3] = {row(q, ROW), row(k, ROW), row(v, ROW)};
  int pairs = (heads + 2 * kv.kv_heads) * half, step = gridDim.x * blockDim.x;
  for (int at = COLUMN; at < pairs; at += step) {
    int head = at / half, i = at - head * half;
    bool is_q = head < heads, is_v = head >= heads + kv.kv_heads;
    int own = is_q ? head : is_v ? head - heads - kv.kv_heads : head - heads;
    float *x = (is_q ? rows[0] : is_v ? rows[2] : rows[1]) + own * kv.d_head;
    bool turned = !is_v && i < n, apart = turned && !interleaved;
    int a = apart ? i : 2 * i, b = apart ? i + n : 2 * i + 1;
    float p = x[a], r = x[b];
    if (turned) {
      float cosine = t[i], sine = t[n + i], turned_p = p * cosine - r * sine;
      r = r * cosine + p * sine;
      p = turned_p;
      x[a] = p, x[b] = r;
    }
    if (is_q || !page) continue;
    long long to = element(kv, own, position, is_v);
    store(page, kv.dtype, to + a, p);
    store(page, kv.dtype, to + b, r);
  }
}
