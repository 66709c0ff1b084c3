// Instructions of the CUDA kernels: copies, matrix fragments, reductions. Numbers are bfloat16,
// sums float32.
//
// Every instruction that C++ cannot express is wrapped here, so that the kernels themselves are
// plain C++ and also run on a CPU (emulate.h gives the same names, one fiber per thread).
// Shared memory is addressed by 32-bit byte addresses, as the instructions want it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea::kernels::cuda {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

}  // namespace fovea::kernels::cuda

#ifdef FOVEA_EMULATED
#include "fovea/kernels/cuda/emulate.h"
#else

#include <cuda_runtime.h>

namespace fovea::kernels::cuda {

#define FOVEA_DEVICE __device__ __forceinline__
// Called by the host too: nvcc turns a call of a __device__ function in a host template into
// exit(1), without a word.
#define FOVEA_ANYWHERE __host__ __device__ __forceinline__
#define FOVEA_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)

FOVEA_DEVICE uint32_t shared_base() {
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  return static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared));
}

FOVEA_DEVICE void store_shared(uint32_t at, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
FOVEA_DEVICE void store_shared_4(uint32_t at, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}
FOVEA_DEVICE void store_shared_float(uint32_t at, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(value) : "memory");
}
FOVEA_DEVICE void store_shared_8(uint32_t at, uint64_t value) {
  asm volatile("st.shared.b64 [%0], %1;" ::"r"(at), "l"(value) : "memory");
}
FOVEA_DEVICE uint64_t load_shared_8(uint32_t at) {
  uint64_t v;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(v) : "r"(at) : "memory");
  return v;
}
FOVEA_DEVICE uint32_t load_shared(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
FOVEA_DEVICE float2 load_shared_float2(uint32_t at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
  return v;
}
FOVEA_DEVICE uint4 load_shared_16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

// Asynchronous copies global -> shared. An invalid row is filled with zeros; `from` must still be
// a mapped address.
FOVEA_DEVICE void copy_async_16(uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
FOVEA_DEVICE void copy_async_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
FOVEA_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
FOVEA_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8.
FOVEA_DEVICE void load_matrix(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
FOVEA_DEVICE void load_matrix_transposed(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// d[16x8] += a[16x16] b[16x8]. With g = lane/4, t = lane%4: d = (g,2t) (g,2t+1) (g+8,2t)
// (g+8,2t+1).
FOVEA_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// An 8x8 matrix of 16-bit elements, transposed: lane l has columns 2 (l%4) and the next of row l/4.
FOVEA_DEVICE uint32_t transpose(uint32_t v) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}

// Two floats to two bfloat16 numbers, `low` in the low half.
FOVEA_DEVICE uint32_t pack(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
FOVEA_DEVICE float2 unpack(uint32_t v) {
  return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)};
}

FOVEA_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FOVEA_DEVICE float log2_fast(float x) { return __log2f(x); }
FOVEA_DEVICE float divide_fast(float x, float y) { return __fdividef(x, y); }
// Absolute error near 1e-7: a soft-cap multiplies it by the cap. (tanh.approx: 5e-4.)
FOVEA_DEVICE float tanh_exact(float x) {
  return 1.0f - __fdividef(2.0f, exp2_fast(x * (2.0f * kLog2e)) + 1.0f);
}
FOVEA_DEVICE float infinity() { return __int_as_float(0x7f800000); }
FOVEA_DEVICE float max_of(float a, float b) { return fmaxf(a, b); }
FOVEA_DEVICE float min_of(float a, float b) { return fminf(a, b); }
FOVEA_DEVICE float absolute(float a) { return fabsf(a); }

FOVEA_DEVICE float shuffle_xor(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
FOVEA_DEVICE int shuffle(int v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
FOVEA_DEVICE bool any_lane(bool v) { return __any_sync(0xffffffffu, v); }
FOVEA_DEVICE uint32_t ballot(bool v) { return __ballot_sync(0xffffffffu, v); }
FOVEA_DEVICE int popcount(uint32_t v) { return __popc(v); }
FOVEA_DEVICE int lowest_bit(uint64_t v) { return __ffsll(static_cast<long long>(v)) - 1; }
FOVEA_DEVICE int popcount64(uint64_t v) { return __popcll(v); }
FOVEA_DEVICE void sync_block() { __syncthreads(); }
FOVEA_DEVICE void sync_warp() { __syncwarp(); }

FOVEA_DEVICE void add_global(float* at, float v) { atomicAdd(at, v); }
// `at` is 16-byte aligned.
FOVEA_DEVICE void add_global_4(float* at, float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(at), "f"(a), "f"(b), "f"(c),
               "f"(d)
               : "memory");
#else
  atomicAdd(at, a);
  atomicAdd(at + 1, b);
  atomicAdd(at + 2, c);
  atomicAdd(at + 3, d);
#endif
}

template <class T>
FOVEA_DEVICE T load_read_only(const T* at) {
  return __ldg(at);
}

}  // namespace fovea::kernels::cuda
#endif
