// Vectors of the instruction set, the parts of packed rows and prefetching, for matvec_rows.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/products/matvec.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace fovea::kernels {
namespace {

// Partial sums of one output, so that the additions of one need not wait for each other. Number and
// order are the same for every instruction set and any number of rows.
constexpr int64_t kSums = 32;
// Several rows: kTileRows x kTileOutputs vectors of sums, the weights' and one of x fill the 16
// registers (32 of AVX-512).
#if defined(__AVX512F__)
constexpr int64_t kVector = 16, kTileRows = 8, kTileOutputs = 3;
#elif defined(__AVX2__)
constexpr int64_t kVector = 8, kTileRows = 4, kTileOutputs = 3;
#else
constexpr int64_t kVector = 4, kTileRows = 4, kTileOutputs = 2;
#endif
typedef float Vector __attribute__((vector_size(4 * kVector), aligned(4), may_alias));

typedef uint32_t Words __attribute__((vector_size(4 * kVector), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * kVector)));
typedef int16_t Shorts __attribute__((vector_size(4 * kVector)));

constexpr int64_t kPasses = kSums / kVector;  // over the inputs of a tile: a vector of sums each
FOVEA_INLINE Vector load_vector(const float* x) { return *reinterpret_cast<const Vector*>(x); }
FOVEA_INLINE Vector load_vector(const BFloat16* x) {
#if defined(__AVX512F__)
  // With a mask: GCC 12 reports the plain conversion of its own header as uninitialised.
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  const auto words = reinterpret_cast<Words>(_mm512_maskz_cvtepu16_epi32(0xFFFF, halves));
  return reinterpret_cast<Vector>(words << 16);
#elif defined(__AVX2__)
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return reinterpret_cast<Vector>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
#else
  Vector y;
  for (int64_t i = 0; i < kVector; ++i) y[i] = to_float(x[i]);
  return y;
#endif
}

FOVEA_INLINE Shorts load_shorts(const int16_t* x) {
  Shorts y;
  __builtin_memcpy(&y, x, sizeof(y));
  return y;
}

// One row: a thread reads this many stretches of the weights side by side, each from one end to the
// other. The prefetchers follow long stretches and lose those that jump from row to row (rows o and
// o + 1 together reach 60 % of the speed; one stretch alone 75 % where pages are small).
constexpr int64_t kStretches = 2;

typedef float Four __attribute__((vector_size(16)));

/// The upper half of a vector is added to the lower one until four are left.
FOVEA_INLINE Four halved_to_four(Vector all) {
#if defined(__AVX512F__)
  typedef float Eight __attribute__((vector_size(32)));
  const Eight eight = __builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15);
#elif defined(__AVX2__)
  const Vector eight = all;
#endif
#if defined(__AVX2__)
  return __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
         __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
#else
  return all;
#endif
}

/// The same until one is left.
FOVEA_INLINE float halved(Four four) {
  const Four two = four + __builtin_shufflevector(four, four, 2, 3, 2, 3);
  return two[0] + two[1];
}

// Packed weights.

constexpr int64_t kScales = 16;  // blocks whose scales are widened together

/// One output's weights.
template <WeightFormat format>
struct PackedRow {
  const uint16_t *d, *m;
  const uint8_t* q;

  FOVEA_INLINE PackedRow(const MatVec& p, int64_t output) {
    const int64_t blocks = p.inputs / kBlock;
    const auto* row = static_cast<const uint8_t*>(p.w.data) + output * row_bytes(format, p.inputs);
    d = reinterpret_cast<const uint16_t*>(row);
    m = d + blocks;
    q = row + 2 * block_scales(format) * blocks;
  }
};

/// At most kScales scales in float32.
FOVEA_INLINE void widen_scales(const uint16_t* halves, int64_t count, float* out) {
#if defined(__AVX2__)
  if (count == kScales) {
    for (int64_t i = 0; i < kScales; i += 8)
      _mm256_storeu_ps(
          out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + i))));
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    out[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(halves[i])));
#else
  for (int64_t i = 0; i < count; ++i) out[i] = half_to_float(halves[i]);
#endif
}

// Words of kVector outputs, turned.

/// 4 kVector bytes, or `bytes` (a multiple of 16) with zeros behind them.
FOVEA_INLINE Words load_words(const uint8_t* x, int64_t bytes) {
#if defined(__AVX512F__)
  const auto mask = static_cast<__mmask16>(bytes >= 64 ? 0xFFFF : (1 << bytes / 4) - 1);
  return reinterpret_cast<Words>(_mm512_maskz_loadu_epi32(mask, x));
#elif defined(__AVX2__)
  const auto* const at = reinterpret_cast<const __m128i*>(x);
  const __m128i low = _mm_loadu_si128(at),
                high = bytes >= 32 ? _mm_loadu_si128(at + 1) : _mm_setzero_si128();
  return reinterpret_cast<Words>(_mm256_set_m128i(high, low));
#else
  static_cast<void>(bytes);
  Words words;
  __builtin_memcpy(&words, x, sizeof(words));  // rows begin at any even address
  return words;
#endif
}

/// kVector scales in float32, or `count` with zeros behind them.
FOVEA_INLINE Words widen_some(const uint16_t* halves, int64_t count) {
#if defined(__AVX512F__)
  const auto mask = static_cast<__mmask16>(count >= kVector ? 0xFFFF : (1 << count) - 1);
  const __m256i some = _mm256_maskz_loadu_epi16(mask, halves);
  return reinterpret_cast<Words>(_mm512_maskz_cvtph_ps(0xFFFF, some));
#else
  uint16_t some[kVector] = {};
  for (int64_t i = 0; i < kVector && i < count; ++i) some[i] = halves[i];
#if defined(__AVX2__)
  return reinterpret_cast<Words>(
      _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(some))));
#else
  Vector wide;
  for (int64_t i = 0; i < kVector; ++i) wide[i] = half_to_float(some[i]);
  return reinterpret_cast<Words>(wide);
#endif
#endif
}

/// Word k of vector o becomes word o of vector k.
FOVEA_INLINE void turn_words(Words (&w)[kVector]) {
#if defined(__AVX512F__)
  const auto in = [&](int64_t i) { return reinterpret_cast<__m512i>(w[i]); };
  __m512i two[16], four[16];
#pragma GCC unroll 8
  for (int64_t i = 0; i < 16; i += 2) {
    two[i] = _mm512_unpacklo_epi32(in(i), in(i + 1));
    two[i + 1] = _mm512_unpackhi_epi32(in(i), in(i + 1));
  }
#pragma GCC unroll 4
  for (int64_t i = 0; i < 16; i += 4) {
    four[i] = _mm512_unpacklo_epi64(two[i], two[i + 2]);
    four[i + 1] = _mm512_unpackhi_epi64(two[i], two[i + 2]);
    four[i + 2] = _mm512_unpacklo_epi64(two[i + 1], two[i + 3]);
    four[i + 3] = _mm512_unpackhi_epi64(two[i + 1], two[i + 3]);
  }
  // four[4 i + c]: in each quarter q word 4 q + c of vectors 4 i ... 4 i + 3.
#pragma GCC unroll 4
  for (int64_t c = 0; c < 4; ++c) {
    const __m512i even = _mm512_shuffle_i32x4(four[c], four[4 + c], 0x88),
                  odd = _mm512_shuffle_i32x4(four[c], four[4 + c], 0xDD),
                  even_high = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0x88),
                  odd_high = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0xDD);
    w[c] = reinterpret_cast<Words>(_mm512_shuffle_i32x4(even, even_high, 0x88));
    w[4 + c] = reinterpret_cast<Words>(_mm512_shuffle_i32x4(odd, odd_high, 0x88));
    w[8 + c] = reinterpret_cast<Words>(_mm512_shuffle_i32x4(even, even_high, 0xDD));
    w[12 + c] = reinterpret_cast<Words>(_mm512_shuffle_i32x4(odd, odd_high, 0xDD));
  }
#elif defined(__AVX2__)
  const auto in = [&](int64_t i) { return reinterpret_cast<__m256i>(w[i]); };
  __m256i two[8], four[8];
#pragma GCC unroll 4
  for (int64_t i = 0; i < 8; i += 2) {
    two[i] = _mm256_unpacklo_epi32(in(i), in(i + 1));
    two[i + 1] = _mm256_unpackhi_epi32(in(i), in(i + 1));
  }
#pragma GCC unroll 2
  for (int64_t i = 0; i < 8; i += 4) {
    four[i] = _mm256_unpacklo_epi64(two[i], two[i + 2]);
    four[i + 1] = _mm256_unpackhi_epi64(two[i], two[i + 2]);
    four[i + 2] = _mm256_unpacklo_epi64(two[i + 1], two[i + 3]);
    four[i + 3] = _mm256_unpackhi_epi64(two[i + 1], two[i + 3]);
  }
#pragma GCC unroll 4
  for (int64_t c = 0; c < 4; ++c) {
    w[c] = reinterpret_cast<Words>(_mm256_permute2x128_si256(four[c], four[4 + c], 0x20));
    w[4 + c] = reinterpret_cast<Words>(_mm256_permute2x128_si256(four[c], four[4 + c], 0x31));
  }
#else
  for (int64_t i = 0; i < kVector; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      const uint32_t kept = w[i][j];
      w[i][j] = w[j][i];
      w[j][i] = kept;
    }
  }
#endif
}

// Prefetching.

/// The weights of a later tile of outputs, fetched from one end to the other while all passes over
/// the present ones run: in the order of memory, which the hardware's own prefetchers follow.
struct Prefetch {
  const char* next = nullptr;  // null: none
  int64_t bytes = 0;
  int64_t pass = 0, passes = 1;  // of all passes over the present weights
};

/// The lines of one pass, the same number at every step, perhaps some of the next pass.
class PrefetchLines {
 public:
  FOVEA_INLINE PrefetchLines(const Prefetch& of, int64_t steps) {
    if (of.next == nullptr || steps == 0) return;
    const int64_t lines = of.bytes / kLine, begin = lines * of.pass / of.passes,
                  end = lines * (of.pass + 1) / of.passes;
    line_ = of.next + begin * kLine;
    some_ = (end - begin + steps - 1) / steps;
  }
  /// Into the cache of `level`, 1 or 2.
  template <int level>
  FOVEA_INLINE void advance() {
    for (int64_t n = 0; n < some_; ++n, line_ += kLine) __builtin_prefetch(line_, 0, 4 - level);
  }

 private:
  static constexpr int64_t kLine = 64;
  const char* line_ = nullptr;
  int64_t some_ = 0;
};

/// Outputs from use to prefetch, a multiple of those of a tile: weights that take longer to
/// multiply than memory takes to answer.
FOVEA_INLINE int64_t outputs_ahead(int64_t bytes_of_output, int64_t tile) {
  constexpr int64_t kBytes = 16 << 10;
  return (kBytes / (bytes_of_output * tile) + 1) * tile;
}

}  // namespace
}  // namespace fovea::kernels
