// Instructions that C++ has no names for. The emulation has a file with the same functions for a
// processor, so that tests run the kernels without a card.
#pragma once

#include "dtype.cuh"

// Shared memory whose size the launch sets.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]

// Programmatic dependent launch (Hopper and later): the next kernel may start once every block of
// this one has allowed it, and then waits for the writes of this kernel. Before that wait it may
// only read data from before the pass: weights, keys of earlier tokens. Blocks allow the next kernel
// after their own wait or later, because waiting blocks would occupy the card.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// c += a · b, where a is 16 by 16 and b is 16 by 8, both of 16-bit numbers. Lane 4g + t holds rows g
// and g + 8 of a, column g of b, and columns 2t and 2t + 1 of rows g and g + 8 of c.
template <int DTYPE>
__device__ inline void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                unsigned b1) {
  if constexpr (DTYPE == F16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Loads sixteen bytes that are read once, next to sixteen that are read next. The cache hint keeps
// the line in L1 for that long, which saves a tenth of a product's time.
__device__ inline uint4 load_once(const char *at) {
  uint4 x;
  asm volatile("ld.global.nc.L1::evict_first.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(at));
  return x;
}

__device__ inline unsigned shared_place(const void *at) { return (unsigned)__cvta_generic_to_shared(at); }

// Copies sixteen bytes into shared memory, or writes zeros.
__device__ inline void copy_async(void *to, const char *from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_place(to)), "l"(from), "r"(there ? 16 : 0));
}

__device__ inline void close_group() { asm volatile("cp.async.commit_group;"); }
// Waits until at most this many groups of copies are in flight.
template <int COUNT> __device__ inline void wait_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(COUNT)); }

// Loads four tiles of eight rows of sixteen bytes each. Lane 8i + r has the address of row r of tile i.
__device__ inline void load_tiles(unsigned (&x)[4], const void *at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_place(at)));
}

// Loads four tiles, each transposed.
__device__ inline void load_tiles_turned(unsigned (&x)[4], const void *at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_place(at)));
}

// 2 to the power of x.
__device__ inline float power(float x) {
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}
