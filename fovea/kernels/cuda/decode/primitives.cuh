// Instructions of the decoder's kernels beside those of device.cuh.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/device.cuh"

namespace fovea::kernels::cuda {

#ifdef FOVEA_EMULATED
inline void start_dependents() {}
inline void wait_for_previous() {}
inline int add_and_get_old(int* at, int v) {
  const int old = *at;
  *at += v;
  return old;
}
inline void fence_device() {}
inline float load_other(const float* at) { return *at; }
inline uint16_t bits_of(float x) { return emulation::float_to_bf16(x); }
inline float exact_erf(float x) { return std::erf(x); }
inline float exact_sqrt(float x) { return std::sqrt(x); }
#else
/// The next kernel of the stream may start; it waits before it reads what this one writes.
FOVEA_DEVICE void start_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
FOVEA_DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
FOVEA_DEVICE int add_and_get_old(int* at, int v) { return atomicAdd(at, v); }
FOVEA_DEVICE void fence_device() { __threadfence(); }
/// A number that another block has written, past the first-level cache.
FOVEA_DEVICE float load_other(const float* at) { return __ldcg(at); }
FOVEA_DEVICE uint16_t bits_of(float x) { return static_cast<uint16_t>(pack(x, 0.0f)); }
FOVEA_DEVICE float exact_erf(float x) { return erff(x); }
FOVEA_DEVICE float exact_sqrt(float x) { return __fsqrt_rn(x); }
#endif

FOVEA_DEVICE float load_shared_number(uint32_t at) {
  const uint32_t bits = load_shared(at);
#ifdef FOVEA_EMULATED
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
#else
  return __uint_as_float(bits);
#endif
}
FOVEA_DEVICE float number(uint16_t bits) { return unpack(bits).x; }
/// x as bfloat16 holds it.
FOVEA_DEVICE float rounded(float x) { return unpack(pack(x, 0.0f)).x; }
FOVEA_DEVICE float exp_fast(float x) { return exp2_fast(x * kLog2e); }

template <int kLanes = 32>
FOVEA_DEVICE float warp_sum(float x) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}
FOVEA_DEVICE float shuffle_float(float x, int lane) {
#ifdef FOVEA_EMULATED
  int bits;
  std::memcpy(&bits, &x, 4);
  bits = shuffle(bits, lane);
  std::memcpy(&x, &bits, 4);
  return x;
#else
  return __shfl_sync(0xffffffffu, x, lane);
#endif
}
FOVEA_DEVICE float warp_max(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = max_of(x, shuffle_xor(x, mask));
  return x;
}

}  // namespace fovea::kernels::cuda
