// Blocks of threads on a processor: every thread of a block is a fiber, and the runner switches
// between warps in random order. Kernels run as on a card, as far as C++ can tell: a barrier that is
// missing shows as a wrong result for some order.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

struct Index {
  int x, y, z;
};

namespace emulation {

constexpr int WARP = 32;
constexpr size_t STACK_BYTES = 128 << 10, SHARED_ALIGN = 128;

// Copy into shared memory that has begun.
struct Copy {
  void *to;
  const void *from;
  bool there;
};

struct Thread {
  Index index;
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool has_ended = false;
  // Copies since the last group was closed, and closed groups in order.
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
  // What the lane gives to an operation of its warp, and what it gets.
  unsigned given[8], got[8];
  float sums[4];
  const void *address;
};

struct Block {
  std::vector<Thread> threads;
  int current = 0;
  ucontext_t runner;
  Index index, size, grid;
  std::vector<char> room;
  char *shared = nullptr;
  size_t shared_bytes = 0;
  int waiting = 0;
  long barriers = 0;
  std::vector<int> arrived;
  std::vector<long> operations;
  std::function<void()> kernel;
  std::mt19937 random{1};

  Thread &thread() { return threads[current]; }
};

inline Block &block() {
  static Block block;
  return block;
}

[[noreturn]] inline void fail(const char *what) {
  Block &b = block();
  std::fprintf(stderr, "%s: block %d %d %d, thread %d\n", what, b.index.x, b.index.y, b.index.z, b.current);
  std::abort();
}

// Lets another thread run.
inline void yield() {
  Thread &thread = block().thread();
  swapcontext(&thread.context, &block().runner);
}

inline void barrier() {
  Block &b = block();
  long before = b.barriers;
  if (++b.waiting == (int)b.threads.size()) b.waiting = 0, b.barriers++;
  while (b.barriers == before) yield();
}

// Runs `operation` with the first thread of the warp, once all its lanes have arrived.
template <class Operation> void with_warp(Operation operation) {
  Block &b = block();
  int warp = b.current / WARP;
  long before = b.operations[warp];
  if (++b.arrived[warp] == WARP) {
    operation(&b.threads[warp * WARP]);
    b.arrived[warp] = 0, b.operations[warp]++;
  }
  while (b.operations[warp] == before) yield();
}

// Fails unless sixteen aligned bytes lie in the shared memory of the block.
inline void check_shared(const void *at) {
  Block &b = block();
  ptrdiff_t offset = (const char *)at - b.shared;
  if (offset < 0 || offset + 16 > (ptrdiff_t)b.shared_bytes) fail("outside of shared memory");
  if (offset % 16) fail("not aligned in shared memory");
}

inline void run_thread() {
  block().kernel();
  Thread &thread = block().thread();
  if (!thread.open.empty()) fail("copies that no group contains");
  thread.has_ended = true;
  for (;;) yield();
}

inline void run_block() {
  Block &b = block();
  int count = b.size.x;
  // Memory that nothing has written is not a number.
  b.room.assign(b.shared_bytes + SHARED_ALIGN, (char)0xff);
  b.shared = (char *)(((size_t)b.room.data() + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN);
  b.threads.resize(count);
  b.waiting = 0, b.barriers = 0;
  b.arrived.assign(count / WARP, 0);
  b.operations.assign(count / WARP, 0);
  for (int t = 0; t < count; t++) {
    Thread &thread = b.threads[t];
    thread.index = {t, 0, 0};
    thread.has_ended = false;
    thread.groups.clear();
    if (!thread.stack) thread.stack.reset(new char[STACK_BYTES]);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = STACK_BYTES;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, run_thread, 0);
  }
  // A block whose threads wait for each other for ever has made no progress for this many turns.
  constexpr int TURNS_MAX = 50'000'000;
  for (int left = count, turns = 0; left > 0; turns++) {
    if (turns > TURNS_MAX) fail("the threads wait for each other");
    int warp = (int)(b.random() % (count / WARP));
    for (int lane = 0; lane < WARP; lane++) {
      b.current = warp * WARP + lane;
      if (b.thread().has_ended) continue;
      swapcontext(&b.runner, &b.thread().context);
      left -= b.thread().has_ended;
    }
  }
}

// Runs all blocks of a launch, one after the other.
inline void launch(Index blocks, int threads, size_t shared_bytes, std::function<void()> kernel) {
  Block &b = block();
  b.size = {threads, 1, 1}, b.grid = blocks, b.shared_bytes = shared_bytes, b.kernel = kernel;
  for (int z = 0; z < blocks.z; z++)
    for (int y = 0; y < blocks.y; y++)
      for (int x = 0; x < blocks.x; x++) {
        b.index = {x, y, z};
        run_block();
      }
}

}  // namespace emulation

#define threadIdx (emulation::block().thread().index)
#define blockIdx (emulation::block().index)
#define blockDim (emulation::block().size)
#define gridDim (emulation::block().grid)
