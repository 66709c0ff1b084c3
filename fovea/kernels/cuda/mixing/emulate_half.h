// The instructions of half.cuh on a CPU (kernels/cuda/emulate.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "fovea/kernels/cuda/emulate.h"

namespace fovea::kernels::cuda::mixing {

namespace emulation_half {

inline float half_to_float(uint16_t bits) {
  _Float16 h;
  std::memcpy(&h, &bits, 2);
  return static_cast<float>(h);
}
inline uint16_t float_to_half(float x) {
  const auto h = static_cast<_Float16>(x);
  uint16_t bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}

inline void check_aligned(const void* at) {
  if (reinterpret_cast<uintptr_t>(at) % 16 != 0) throw std::logic_error("unaligned access");
}

}  // namespace emulation_half

inline void mma_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::product<emulation_half::half_to_float>(d, a, b0, b1);
}
inline void mma_bfloat(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::product<emulation::bf16_to_float>(d, a, b0, b1);
}
inline uint32_t pack_half(float low, float high) {
  return emulation_half::float_to_half(low) | uint32_t(emulation_half::float_to_half(high)) << 16;
}
inline void unpack_half(float& low, float& high, uint32_t x) {
  low = emulation_half::half_to_float(static_cast<uint16_t>(x));
  high = emulation_half::half_to_float(static_cast<uint16_t>(x >> 16));
}

inline void store_shared_16(uint32_t at, const uint4& v) { std::memcpy(at_shared(at), &v, 16); }
inline uint4 load_global_16(const void* at) {
  emulation_half::check_aligned(at);
  uint4 v;
  std::memcpy(&v, at, 16);
  return v;
}
inline void store_global_16(void* at, const uint4& v) {
  emulation_half::check_aligned(at);
  std::memcpy(at, &v, 16);
}
inline void store_matrix_transposed(uint32_t at, const uint32_t (&r)[4]) {
  using namespace emulation;
  Fiber& me = self();
  me.in[0] = at;
  for (int x = 0; x < 4; ++x) me.in[1 + x] = r[x];
  meet_warp([](Fiber* lanes) {
    for (int l = 0; l < 32; ++l)
      for (int x = 0; x < 4; ++x)
        for (int e = 0; e < 2; ++e) {
          const auto value = static_cast<uint16_t>(lanes[l].in[1 + x] >> (16 * e));
          const auto row = static_cast<uint32_t>(lanes[8 * x + 2 * (l % 4) + e].in[0]);
          std::memcpy(at_shared(row) + 2 * (l / 4), &value, 2);
        }
  });
  meet_warp([](Fiber*) {});
}

inline void add_global_2(float* at, float a, float b) {
  at[0] += a;
  at[1] += b;
}
inline void add_shared(uint32_t at, float v) {
  float sum;
  std::memcpy(&sum, at_shared(at), 4);
  sum += v;
  std::memcpy(at_shared(at), &sum, 4);
}
inline void max_global(float* at, float v) { *at = v > *at ? v : *at; }
inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float bits_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline float floor_of(float x) { return std::floor(x); }

}  // namespace fovea::kernels::cuda::mixing
