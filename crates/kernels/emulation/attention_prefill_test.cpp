// Attention of prompts: near the exact result, and each row has the bits that it has alone.
#include "../src/attention_prefill.cu"
#include "testing.h"

using namespace testing;

constexpr int PAGE_TOKENS = 16, STAGES_MAX = 4;

// Rows of several sessions whose keys and values lie in pages in random order.
template <int DTYPE, int D> struct Sessions {
  int heads, kv_heads, d_head, window, pages = 0;
  std::vector<int> positions, sequences;
  std::vector<std::vector<int>> tables;
  std::unique_ptr<unsigned short[]> memory;
  std::vector<float> queries;

  // Each session is a number of keys, and a number of rows at their end.
  Sessions(int heads, int kv_heads, int d_head, int window, const std::vector<std::pair<int, int>> &sessions)
      : heads(heads), kv_heads(kv_heads), d_head(d_head), window(window) {
    for (size_t s = 0; s < sessions.size(); s++) {
      auto [keys, rows] = sessions[s];
      for (int r = keys - rows; r < keys; r++) positions.push_back(r), sequences.push_back((int)s);
      tables.emplace_back((keys + PAGE_TOKENS - 1) / PAGE_TOKENS);
      for (int &page : tables.back()) page = pages++;
    }
    std::vector<int> order(pages);
    for (int i = 0; i < pages; i++) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_bits());
    for (auto &table : tables)
      for (int &page : table) page = order[page];
    memory = halves<DTYPE>((size_t)pages * page_numbers(), 1);
    queries.resize(positions.size() * heads * d_head);
    for (float &x : queries) x = number(1);
  }

  size_t page_numbers() const { return 2 * (size_t)kv_heads * PAGE_TOKENS * d_head; }

  float element(int sequence, int position, int head, int d, bool is_value) const {
    size_t page = tables[sequence][position / PAGE_TOKENS];
    size_t line = ((size_t)is_value * kv_heads + head) * PAGE_TOKENS + position % PAGE_TOKENS;
    return from_bits<DTYPE>(memory[page * page_numbers() + line * d_head + d]);
  }

  float scale() const { return 1 / std::sqrt((float)d_head); }

  // Attends with the rows from `first` on. With stages, a block takes few rows.
  std::vector<float> attend(int first, int count, int stages = 0) const {
    int longest = 0;
    for (auto &table : tables) longest = std::max(longest, (int)table.size());
    std::vector<int> flat(tables.size() * longest, 0);
    for (size_t s = 0; s < tables.size(); s++) std::copy(tables[s].begin(), tables[s].end(), &flat[s * longest]);
    std::vector<float> out((size_t)count * heads * d_head, NAN);
    auto mat = [](const void *at, int rows, int cols) { return Mat{(char *)at, rows, cols, cols}; };
    Mat q = mat(&queries[(size_t)first * heads * d_head], count, heads * d_head), to = mat(out.data(), count, q.cols);
    Mat at = mat(&positions[first], count, 1), of = mat(&sequences[first], count, 1);
    Mat pages_of = mat(flat.data(), (int)tables.size(), longest);
    Kv kv = {(char *)memory.get(), (long long)page_numbers() * 2, pages, PAGE_TOKENS, kv_heads, d_head, DTYPE, 4};
    Attend how = {heads, window, scale()};
    int fault = 0, block_rows = stages ? FEW_ROWS : PREFILL_ROWS, blocks = (count + block_rows - 1) / block_rows;
    int threads = stages ? FEW_THREADS : PREFILL_THREADS;
    size_t shared = stages ? stages * 2 * FewCopies<D>::BYTES + sizeof(FewExchange) : 4 * PREFILL_KEYS * D * 2;
    Shadow none = {nullptr, 0, 0};
    emulation::launch({heads, blocks, 1}, threads, shared, [&] {
      if (stages) attend_prefill_few<DTYPE, D>(q, at, of, pages_of, kv, how, to, none, stages, &fault);
      else attend_prefill<DTYPE, D>(q, at, of, pages_of, kv, how, to, none, &fault);
    });
    expect(fault == 0, "no fault");
    return out;
  }

  double exact(int row, int head, int d) const {
    int position = positions[row], from = first_key(position, window), kv_head = head / (heads / kv_heads);
    std::vector<double> scores;
    double most = -INFINITY, all = 0, y = 0;
    for (int key = from; key <= position; key++) {
      double score = 0;
      for (int i = 0; i < d_head; i++)
        score += (double)queries[((size_t)row * heads + head) * d_head + i] *
                 element(sequences[row], key, kv_head, i, false);
      scores.push_back(score * scale());
      most = std::max(most, scores.back());
    }
    for (int key = from; key <= position; key++) {
      double weight = std::exp(scores[key - from] - most);
      all += weight, y += weight * element(sequences[row], key, kv_head, d, true);
    }
    return y / all;
  }
};

void expect_same(const std::vector<float> &found, const std::vector<float> &all, int width, const std::string &how) {
  expect(found.size() == all.size(), "all rows " + how);
  for (size_t i = 0; i < all.size(); i++)
    expect(same_bits(found[i], all[i]), "row " + std::to_string(i / width) + " " + how);
}

template <int DTYPE, int D> void check(const Sessions<DTYPE, D> &sessions, const std::vector<int> &runs) {
  int count = (int)sessions.positions.size(), width = sessions.heads * sessions.d_head;
  std::vector<float> all = sessions.attend(0, count), parts;
  double limit = DTYPE == F16 ? 4e-3 : 3e-2;
  for (int r = 0; r < count; r++)
    for (int i = 0; i < width; i += 3) {
      double off = std::fabs(all[(size_t)r * width + i] - sessions.exact(r, i / sessions.d_head, i % sessions.d_head));
      expect(off <= limit, "row " + std::to_string(r) + " is off by " + std::to_string(off));
    }
  for (int run : runs) {
    int rows = std::min(run, count - (int)(parts.size() / width));
    std::vector<float> part = sessions.attend((int)(parts.size() / width), rows, between(0, 1) ? between(2, STAGES_MAX) : 0);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  expect_same(parts, all, width, "in parts");
  for (int stages = 2; stages <= STAGES_MAX; stages++)
    expect_same(sessions.attend(0, count, stages), all, width, "with " + std::to_string(stages) + " stages");
}

int main() {
  check(Sessions<F16, 64>(2, 1, 64, 0, {{130, 3}, {5, 5}, {70, 40}}), {1, 2, 20, 20, 5});
  check(Sessions<BF16, 128>(2, 2, 128, 0, {{100, 66}}), {1, 60, 5});
  check(Sessions<F16, 64>(1, 1, 40, 50, {{150, 30}, {64, 1}}), {7, 23, 1});
  // More tiles than stages.
  check(Sessions<F16, 64>(1, 1, 64, 0, {{700, 17}, {513, 1}}), {1, 16, 1});
}
