// Instructions that the mixing kernels need beyond device.cuh: products and numbers of float16,
// whole pieces of 16 bytes, sums in shared memory.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/device.cuh"

#ifdef FOVEA_EMULATED
#include "fovea/kernels/cuda/mixing/emulate_half.h"
#else

namespace fovea::kernels::cuda::mixing {

// d[16x8] += a[16x16] b[16x8], in device.cuh's layout. Not volatile: ptxas may order them.
FOVEA_DEVICE void mma_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FOVEA_DEVICE void mma_bfloat(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats to two float16 numbers, `low` in the low half.
FOVEA_DEVICE uint32_t pack_half(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
FOVEA_DEVICE void unpack_half(float& low, float& high, uint32_t x) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(low), "=f"(high)
      : "r"(x));
}

FOVEA_DEVICE void store_shared_16(uint32_t at, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
FOVEA_DEVICE uint4 load_global_16(const void* at) {
  uint4 v;
  asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}
FOVEA_DEVICE void store_global_16(void* at, const uint4& v) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
// The inverse of load_matrix_transposed().
FOVEA_DEVICE void store_matrix_transposed(uint32_t at, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// `at` is 8-byte aligned.
FOVEA_DEVICE void add_global_2(float* at, float a, float b) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(at), "f"(a), "f"(b) : "memory");
}
FOVEA_DEVICE void add_shared(uint32_t at, float v) {
  asm volatile("red.shared.add.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
// Numbers from 0 on: their bits have the order of integers.
FOVEA_DEVICE void max_global(float* at, float v) {
  atomicMax(reinterpret_cast<int*>(at), __float_as_int(v));
}
FOVEA_DEVICE uint32_t float_bits(float x) { return __float_as_uint(x); }
FOVEA_DEVICE float bits_float(uint32_t x) { return __uint_as_float(x); }
FOVEA_DEVICE float floor_of(float x) { return floorf(x); }

}  // namespace fovea::kernels::cuda::mixing
#endif

namespace fovea::kernels::cuda::mixing {

FOVEA_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
FOVEA_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
FOVEA_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
FOVEA_DEVICE int grid_x() { return static_cast<int>(gridDim.x); }
FOVEA_DEVICE int grid_y() { return static_cast<int>(gridDim.y); }

FOVEA_DEVICE int shuffle_xor_bits(int x, int mask) {
  return static_cast<int>(float_bits(shuffle_xor(bits_float(static_cast<uint32_t>(x)), mask)));
}

}  // namespace fovea::kernels::cuda::mixing
