// The measured peaks of one core.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/fma_peak.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "fovea/kernels/common/isa.h"
#include "fovea/kernels/common/pair_products.h"

namespace fovea {
namespace {

double best_rate(double flops, void (*loop)(), int runs) {
  double best = 0.0;
  for (int n = 0; n < runs; ++n) {
    const auto start = std::chrono::steady_clock::now();
    loop();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, flops / seconds.count() * 1e-9);
  }
  return best;
}

constexpr int kSteps = 4'000'000, kChains = 12;

#if defined(__x86_64__)
// Twelve chains hide the latency; each stays in its register, hidden from the optimiser.
#define FOVEA_CHAINS(step)                                                                  \
  step(c0) step(c1) step(c2) step(c3) step(c4) step(c5) step(c6) step(c7) step(c8) step(c9) \
      step(c10) step(c11)
#define FOVEA_HIDE(x) asm volatile("" : "+v"(x));
#define FOVEA_LOOP(Vector, start, step)                                                      \
  Vector c0 = start, c1 = start, c2 = start, c3 = start, c4 = start, c5 = start, c6 = start, \
         c7 = start, c8 = start, c9 = start, c10 = start, c11 = start;                       \
  FOVEA_CHAINS(FOVEA_HIDE)                                                                   \
  for (int n = 0; n < kSteps; ++n) {                                                         \
    FOVEA_CHAINS(step)                                                                       \
  }                                                                                          \
  FOVEA_CHAINS(FOVEA_HIDE)

__attribute__((target("avx2,fma"))) void loop_avx2() {
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.0f);
#define FOVEA_STEP(c) c = _mm256_fmadd_ps(c, a, b);
  FOVEA_LOOP(__m256, a, FOVEA_STEP)
#undef FOVEA_STEP
}

__attribute__((target("avx512f"))) void loop_avx512() {
  const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1.0f);
#define FOVEA_STEP(c) c = _mm512_fmadd_ps(c, a, b);
  FOVEA_LOOP(__m512, a, FOVEA_STEP)
#undef FOVEA_STEP
}

__attribute__((target("avx512f,avx512bf16"))) void loop_bf16() {
  const __m512 a = _mm512_set1_ps(0.5f);
  const __m512bh pairs = _mm512_cvtne2ps_pbh(a, a);
#define FOVEA_STEP(c) c = _mm512_dpbf16_ps(c, pairs, pairs);
  FOVEA_LOOP(__m512, a, FOVEA_STEP)
#undef FOVEA_STEP
}
#endif

}  // namespace

double fma_peak_float32([[maybe_unused]] int runs) {
#if defined(__x86_64__)
  constexpr double kProducts = 2.0 * kSteps * kChains;
  if (chosen_isa() >= Isa::avx512) return best_rate(16 * kProducts, loop_avx512, runs);
  if (chosen_isa() >= Isa::avx2) return best_rate(8 * kProducts, loop_avx2, runs);
#endif
  return 0.0;
}

double fma_peak_bfloat16(int runs) {
#if defined(__x86_64__)
  if (multiplies_pairs()) return best_rate(64.0 * kSteps * kChains, loop_bf16, runs);
#endif
  return fma_peak_float32(runs);
}

float sum_of(const float* x, size_t n) {
  typedef float Line __attribute__((vector_size(64)));
  Line sums[4] = {};
  for (size_t i = 0; i + 64 <= n; i += 64) {
    for (size_t c = 0; c < 4; ++c) {
      Line line;
      __builtin_memcpy(&line, x + i + 16 * c, sizeof line);
      sums[c] += line;
    }
  }
  const Line all = sums[0] + sums[1] + sums[2] + sums[3];
  float total = 0.0f;
  for (int i = 0; i < 16; ++i) total += all[i];
  return total;
}

}  // namespace fovea
