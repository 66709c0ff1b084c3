// Warp and shared-memory primitives. Compiled by nvcc they are PTX; compiled by a host compiler
// (-DFOVEA_EMULATE) they come from emulate.h, which runs a block as fibers so that index maps can
// be checked without a GPU.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#ifdef FOVEA_EMULATE
#include "emulate.h"
#else
#include <cuda_runtime.h>
#define DEV __device__ __forceinline__
#define KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
using saddr = uint32_t;  // address inside shared memory

extern __shared__ __align__(128) unsigned char dynamic_smem[];
DEV saddr smem_base() { return static_cast<saddr>(__cvta_generic_to_shared(dynamic_smem)); }

DEV void sts32(saddr p, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(p), "r"(x) : "memory");
}
DEV uint32_t lds32(saddr p) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(p) : "memory");
  return x;
}
DEV void lds128(uint32_t* r, saddr p) {
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(p)
               : "memory");
}
DEV void sts128(saddr p, const uint32_t (&r)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(p), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}
DEV void load16(uint32_t (&r)[4], const void* g) {  // g 16-byte aligned
  asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "l"(g)
               : "memory");
}
DEV void ldsm4(uint32_t (&r)[4], saddr p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(p)
               : "memory");
}
DEV void ldsm4t(uint32_t (&r)[4], saddr p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(p)
               : "memory");
}
DEV void stsm4t(saddr p, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(p),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
DEV void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV uint32_t pack_f16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
DEV void unpack_f16(float& lo, float& hi, uint32_t x) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(lo), "=f"(hi)
      : "r"(x));
}
DEV uint32_t pack_bf16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
DEV float exp2_fast(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// 16 bytes global -> shared, zeros where !live (the address must still be readable: pass a valid
// one).
DEV void copy16(saddr s, const void* g, bool live) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(s), "l"(g), "r"(live ? 16 : 0)
               : "memory");
}
DEV void store16(void* g, const uint32_t (&r)[4]) {  // g 16-byte aligned
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(g), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}
DEV void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEV void copy_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
template <int N>
DEV void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
DEV void sync_block() { __syncthreads(); }
DEV void sync_warp() { __syncwarp(); }
DEV float shfl_xor(float x, int m) { return __shfl_xor_sync(0xffffffffu, x, m); }
DEV int shfl_xor(int x, int m) { return __shfl_xor_sync(0xffffffffu, x, m); }
DEV void add2(float* p, float x, float y) {  // p 8-byte aligned
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(x), "f"(y) : "memory");
}
DEV void add1(float* p, float x) { atomicAdd(p, x); }
DEV void add_shared(saddr p, float x) {
  asm volatile("red.shared.add.f32 [%0], %1;" ::"r"(p), "f"(x) : "memory");
}
DEV void max_nonnegative(float* p, float x) {
  atomicMax(reinterpret_cast<int*>(p), __float_as_int(x));
}
DEV uint32_t float_bits(float x) { return __float_as_uint(x); }
DEV float bits_float(uint32_t x) { return __uint_as_float(x); }
DEV float log2_fast(float x) { return __log2f(x); }
DEV int tid() { return threadIdx.x; }
DEV int block_x() { return blockIdx.x; }
DEV int block_y() { return blockIdx.y; }
DEV int grid_x() { return gridDim.x; }
DEV int grid_y() { return gridDim.y; }
#endif
