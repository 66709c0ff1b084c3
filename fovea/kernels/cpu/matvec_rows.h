// The loops of matvec.h, written once and compiled once per instruction set (elementwise_rows.h
// says why everything here has internal linkage).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/matvec.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace fovea::kernels {
namespace {

/// A product whose weights are plain numbers, or are so by now.
template <class W>
struct Product {
  const float* x;
  int64_t x_stride;
  const W* w;
  float* y;
  int64_t y_stride, rows, inputs;
};
template <class W>
FOVEA_INLINE Product<W> typed(const MatVec& p) {
  return {p.x, p.x_stride, static_cast<const W*>(p.w.data), p.y, p.y_stride, p.rows, p.inputs};
}

// Partial sums of one output, so that the additions of one need not wait for each other. Number and
// order are the same for every instruction set and any number of rows.
constexpr int64_t kSums = 32;
// One row: a thread reads this many stretches of the weights side by side, each from one end to the
// other. The prefetchers follow long stretches and lose those that jump from row to row (rows o and
// o + 1 together reach 60 % of the speed; one stretch alone 75 % where pages are small).
constexpr int64_t kStretches = 2;

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

typedef uint32_t Words __attribute__((vector_size(4 * kVector)));

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

/// The first `count` of a vector, zeros behind them.
template <class X>
FOVEA_INLINE Vector load_first(const X* x, int64_t count) {
  if (count >= kVector) return load_vector(x);
  float some[kVector] = {};
  for (int64_t i = 0; i < count; ++i) some[i] = to_float(x[i]);
  return load_vector(some);
}

typedef float Four __attribute__((vector_size(16)));

constexpr int64_t kPasses = kSums / kVector;  // over the inputs of a tile: a vector of sums each
/// The vectors of sums in the order in which two neighbours, then two pairs and so on are the
/// halves that halved_to_four() adds: the bits of the pass, turned round.
constexpr int64_t vector_of_pass(int64_t pass) {
  int64_t turned = 0;
  for (int64_t bit = 1; bit < kPasses; bit *= 2) turned = 2 * turned + (pass / bit) % 2;
  return turned;
}

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

/// The same of kSums floats in several vectors, which it changes.
FOVEA_INLINE Four halved_to_four(Vector (&all)[kPasses]) {
#pragma GCC unroll 4
  for (int64_t half = kPasses / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < half; ++v) all[v] += all[v + half];
  }
  return halved_to_four(all[0]);
}
FOVEA_INLINE Four halved_to_four(const float* sums) {
  Vector all[kPasses];
#pragma GCC unroll 8
  for (int64_t v = 0; v < kPasses; ++v) all[v] = load_vector(sums + v * kVector);
  return halved_to_four(all);
}

/// The same until one is left.
FOVEA_INLINE float halved(Four four) {
  const Four two = four + __builtin_shufflevector(four, four, 2, 3, 2, 3);
  return two[0] + two[1];
}

/// halved() of four at once, with the same additions.
FOVEA_INLINE Four halved(Four a, Four b, Four c, Four d) {
  const Four ab =
      __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Four cd =
      __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/// The inputs behind the last whole kSums, and the sums of all partial sums but the last two
/// halves.
template <class W>
FOVEA_INLINE Four finished(float* sums, const float* x, const W* w, int64_t rest) {
  for (int64_t j = 0; j < rest; ++j) sums[j] += x[j] * to_float(w[j]);
  return halved_to_four(sums);
}

/// Outputs first, first + stride, ... of one row.
template <class W, int64_t outputs>
FOVEA_INLINE void dot(const Product<W>& p, int64_t first, int64_t stride) {
  float sums[outputs][kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= p.inputs; i += kSums) {
    const float* __restrict x = p.x + i;
    for (int64_t o = 0; o < outputs; ++o) {
      const W* __restrict w = p.w + (first + o * stride) * p.inputs + i;
#pragma omp simd
      for (int64_t l = 0; l < kSums; ++l) sums[o][l] += x[l] * to_float(w[l]);
    }
  }
  for (int64_t o = 0; o < outputs; ++o) {
    const int64_t n = first + o * stride;
    p.y[n] = halved(finished(sums[o], p.x + i, p.w + n * p.inputs + i, p.inputs - i));
  }
}

template <class W>
void one_row(const Product<W>& p, int64_t begin, int64_t end) {
  const int64_t length = (end - begin) / kStretches;
  for (int64_t o = begin; o < begin + length; ++o) dot<W, kStretches>(p, o, length);
  for (int64_t o = begin + length * kStretches; o < end; ++o) dot<W, 1>(p, o, 1);
}

/// The weights of a later tile of outputs, fetched from one end to the other while all passes over
/// the present ones run: in the order of memory, which the hardware's own prefetchers follow.
template <class W>
struct Prefetch {
  const W* next = nullptr;       // null: none
  int64_t pass = 0, passes = 1;  // of all passes over the present weights
};

/// The lines of one pass, some at every kSums inputs.
template <class W>
struct PrefetchLines {
  static constexpr int64_t kLine = 64 / sizeof(W), kAll = kSums / kLine * kTileOutputs;
  const W* line = nullptr;
  int64_t count = 0;  // at a time

  FOVEA_INLINE PrefetchLines(const Prefetch<W>& of, int64_t pass, int64_t inputs) {
    const int64_t some = (kAll + of.passes - 1) / of.passes, steps = inputs / kSums;
    const int64_t first = (of.pass + pass) * some * steps;
    if (of.next == nullptr || first >= kAll * steps) return;
    line = of.next + first * kLine;
    count = some;
  }
  FOVEA_INLINE void advance() {
    for (int64_t n = 0; n < count; ++n, line += kLine) __builtin_prefetch(line, 0, 2);
  }
};

/// Outputs first ... of rows row ...: kVector partial sums of all of them at a time, which stay in
/// registers while they pass over all inputs, then join those of earlier passes as
/// halved_to_four() would.
template <class W, int64_t rows, int64_t outputs>
FOVEA_INLINE void tile(const Product<W>& p, int64_t row, int64_t first, const Prefetch<W>& ahead) {
  const int64_t n = p.inputs, whole = n / kSums * kSums, pitch = p.x_stride;
  const float* const x = p.x + row * pitch;
  const W* const w = p.w + first * n;
  Vector waiting[4][rows][outputs];  // sums of 1, 2, 4, 8 passes
  Vector all[rows][outputs];
#pragma GCC unroll 8
  for (int64_t pass = 0; pass < kPasses; ++pass) {
    const int64_t lane = vector_of_pass(pass) * kVector;
    PrefetchLines<W> lines(ahead, pass, n);
#pragma GCC unroll 8
    for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 3
      for (int64_t o = 0; o < outputs; ++o) all[r][o] = Vector{};
    }
    for (int64_t i = lane; i < whole; i += kSums) {
      lines.advance();
      Vector weights[outputs];
#pragma GCC unroll 3
      for (int64_t o = 0; o < outputs; ++o) weights[o] = load_vector(w + o * n + i);
#pragma GCC unroll 8
      for (int64_t r = 0; r < rows; ++r) {
        const Vector values = load_vector(x + r * pitch + i);
#pragma GCC unroll 3
        for (int64_t o = 0; o < outputs; ++o) all[r][o] += values * weights[o];
      }
    }
    if (const int64_t rest = n - whole - lane; rest > 0) {  // behind the last whole kSums
#pragma GCC unroll 3
      for (int64_t o = 0; o < outputs; ++o) {
        const Vector weights = load_first(w + o * n + whole + lane, rest);
#pragma GCC unroll 8
        for (int64_t r = 0; r < rows; ++r)
          all[r][o] += load_first(x + r * pitch + whole + lane, rest) * weights;
      }
    }
    const int64_t level = __builtin_ctzll(~static_cast<uint64_t>(pass));
#pragma GCC unroll 3
    for (int64_t l = 0; l < level; ++l) {
#pragma GCC unroll 8
      for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 3
        for (int64_t o = 0; o < outputs; ++o) all[r][o] += waiting[l][r][o];
      }
    }
    if (pass + 1 == kPasses) break;
#pragma GCC unroll 8
    for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 3
      for (int64_t o = 0; o < outputs; ++o) waiting[level][r][o] = all[r][o];
    }
  }
  constexpr int64_t kResults = rows * outputs;
#pragma GCC unroll 6
  for (int64_t at = 0; at < kResults; at += 4) {
    Four four[4] = {};
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j)
      if (const int64_t to = at + j; to < kResults)
        four[j] = halved_to_four(all[to / outputs][to % outputs]);
    const Four y = halved(four[0], four[1], four[2], four[3]);
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j)
      if (const int64_t to = at + j; to < kResults)
        p.y[(row + to / outputs) * p.y_stride + first + to % outputs] = y[j];
  }
}

template <class W, int64_t outputs>
FOVEA_INLINE void tile_of_rows(const Product<W>& p, int64_t row, int64_t rows, int64_t first,
                               const Prefetch<W>& ahead) {
  switch (rows) {
    case 1:
      return tile<W, 1, outputs>(p, row, first, ahead);
    case 2:
      return tile<W, 2, outputs>(p, row, first, ahead);
    case 3:
      return tile<W, 3, outputs>(p, row, first, ahead);
    case 4:
      return tile<W, 4, outputs>(p, row, first, ahead);
#if defined(__AVX512F__)
    case 5:
      return tile<W, 5, outputs>(p, row, first, ahead);
    case 6:
      return tile<W, 6, outputs>(p, row, first, ahead);
    case 7:
      return tile<W, 7, outputs>(p, row, first, ahead);
    default:
      return tile<W, 8, outputs>(p, row, first, ahead);
#endif
  }
}

template <class W, int64_t outputs>
void all_rows(const Product<W>& p, int64_t first, const W* next) {
  const int64_t tiles = (p.rows + kTileRows - 1) / kTileRows;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t row = p.rows * t / tiles, rows = p.rows * (t + 1) / tiles - row;
    tile_of_rows<W, outputs>(p, row, rows, first, {next, t * kPasses, tiles * kPasses});
  }
}

/// Outputs from use to prefetch: weights that take longer to multiply than memory takes to answer.
template <class W>
int64_t outputs_ahead(int64_t inputs) {
  constexpr int64_t kBytes = 16 << 10;
  const auto tile_bytes = static_cast<int64_t>(sizeof(W)) * kTileOutputs * inputs;
  return (kBytes / tile_bytes + 1) * kTileOutputs;
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

/// The scales of some blocks in float32.
template <WeightFormat format>
struct WideScales {
  float d[kScales], m[kScales];

  static FOVEA_INLINE void widen(const uint16_t* halves, int64_t count, float* out) {
#if defined(__AVX2__)
    if (count == kScales) {
      for (int64_t i = 0; i < kScales; i += 8)
        _mm256_storeu_ps(
            out + i,
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + i))));
      return;
    }
    for (int64_t i = 0; i < count; ++i)
      out[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(halves[i])));
#else
    for (int64_t i = 0; i < count; ++i) out[i] = half_to_float(halves[i]);
#endif
  }
  FOVEA_INLINE void read(const PackedRow<format>& row, int64_t block, int64_t count) {
    widen(row.d + block, count, d);
    if constexpr (block_scales(format) == 2) widen(row.m + block, count, m);
  }
};

/// The 32 weights of a block, in order: as unpack_row(), bit for bit. Products of d are exact, so
/// that it does not matter whether a sum with them is contracted.
template <WeightFormat format>
FOVEA_INLINE void unpack_block(const uint8_t* q, float d, float m, Vector (&w)[kPasses]) {
#if defined(__AVX512F__)
  const auto bytes = [&](int64_t at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + at));
  };
  if constexpr (format == WeightFormat::q8_0) {
    for (int64_t v = 0; v < kPasses; ++v)
      w[v] =
          reinterpret_cast<Vector>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(v * kVector)))) *
          d;
  } else {
    // What each number of four bits stands for, then a lookup.
    constexpr float zero = format == WeightFormat::q4_0 ? 8.0f : 0.0f;
    const Vector levels = Vector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} - zero;
    Vector table = levels * d;
    if constexpr (block_scales(format) == 2) table += m;
    const __m512i both = _mm512_cvtepu8_epi32(bytes(0));  // a lookup reads the low four bits
    w[0] = reinterpret_cast<Vector>(_mm512_permutexvar_ps(both, reinterpret_cast<__m512>(table)));
    w[1] = reinterpret_cast<Vector>(
        _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), reinterpret_cast<__m512>(table)));
  }
#elif defined(__AVX2__)
  const auto bytes = [&](int64_t at) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(q + at));
  };
  const auto wide = [](__m256i x) { return reinterpret_cast<Vector>(_mm256_cvtepi32_ps(x)); };
  if constexpr (format == WeightFormat::q8_0) {
    for (int64_t v = 0; v < kPasses; ++v) w[v] = wide(_mm256_cvtepi8_epi32(bytes(v * kVector))) * d;
  } else {
    const float offset = format == WeightFormat::q4_0 ? -8.0f * d : m;
    const __m256i low = _mm256_set1_epi32(15);
    for (int64_t v = 0; v < 2; ++v) {
      const __m256i both = _mm256_cvtepu8_epi32(bytes(v * kVector));
      w[v] = wide(_mm256_and_si256(both, low)) * d + offset;
      w[v + 2] = wide(_mm256_srli_epi32(both, 4)) * d + offset;
    }
  }
#else
  for (int64_t i = 0; i < kBlock; ++i) {
    float value = 0.0f;
    if constexpr (format == WeightFormat::q8_0) {
      value = static_cast<float>(static_cast<int8_t>(q[i])) * d;
    } else {
      const int bits = q[i % 16] >> (i < 16 ? 0 : 4) & 15;
      value = static_cast<float>(bits - (format == WeightFormat::q4_0 ? 8 : 0)) * d;
      if constexpr (block_scales(format) == 2) value += m;
    }
    w[i / kVector][i % kVector] = value;
  }
#endif
}

/// dot() of packed weights: the same additions.
template <WeightFormat format, int64_t outputs>
FOVEA_INLINE void packed_dot(const MatVec& p, int64_t first, int64_t stride) {
  static_assert(kBlock == kSums);
  const int64_t blocks = p.inputs / kBlock;
  Vector sums[outputs][kPasses] = {};
  for (int64_t begin = 0; begin < blocks; begin += kScales) {
    const int64_t count = blocks - begin < kScales ? blocks - begin : kScales;
    WideScales<format> scales[outputs];
    const uint8_t* q[outputs];
    for (int64_t o = 0; o < outputs; ++o) {
      const PackedRow<format> row(p, first + o * stride);
      scales[o].read(row, begin, count);
      q[o] = row.q + begin * block_quants(format);
    }
    for (int64_t b = 0; b < count; ++b) {
      const float* const x = p.x + (begin + b) * kBlock;
#pragma GCC unroll 2
      for (int64_t o = 0; o < outputs; ++o) {
        Vector w[kPasses];
        unpack_block<format>(q[o] + b * block_quants(format), scales[o].d[b], scales[o].m[b], w);
#pragma GCC unroll 8
        for (int64_t v = 0; v < kPasses; ++v) sums[o][v] += load_vector(x + v * kVector) * w[v];
      }
    }
  }
  for (int64_t o = 0; o < outputs; ++o) p.y[first + o * stride] = halved(halved_to_four(sums[o]));
}

/// The weights of an output in float32.
template <WeightFormat format>
void unpack_output(const MatVec& p, int64_t output, float* to) {
  const PackedRow<format> row(p, output);
  const int64_t blocks = p.inputs / kBlock;
  for (int64_t begin = 0; begin < blocks; begin += kScales) {
    const int64_t count = blocks - begin < kScales ? blocks - begin : kScales;
    WideScales<format> scales;
    scales.read(row, begin, count);
    for (int64_t b = 0; b < count; ++b, to += kBlock) {
      Vector w[kPasses];
      unpack_block<format>(row.q + (begin + b) * block_quants(format), scales.d[b], scales.m[b], w);
#pragma GCC unroll 8
      for (int64_t v = 0; v < kPasses; ++v) *reinterpret_cast<Vector*>(to + v * kVector) = w[v];
    }
  }
}

template <WeightFormat format>
void packed_range(const MatVec& p, int64_t begin, int64_t end) {
  if (p.rows == 1) {
    const int64_t length = (end - begin) / kStretches;
    for (int64_t o = begin; o < begin + length; ++o) packed_dot<format, kStretches>(p, o, length);
    for (int64_t o = begin + length * kStretches; o < end; ++o) packed_dot<format, 1>(p, o, 1);
    return;
  }
  // Several rows share the work of unpacking.
  float* const unpacked = mat_vec_scratch(kTileOutputs * p.inputs);
  for (int64_t o = begin; o < end; o += kTileOutputs) {
    const int64_t count = end - o < kTileOutputs ? end - o : kTileOutputs;
    for (int64_t n = 0; n < count; ++n) unpack_output<format>(p, o + n, unpacked + n * p.inputs);
    const Product<float> some{p.x, p.x_stride, unpacked, p.y + o, p.y_stride, p.rows, p.inputs};
    if (count == kTileOutputs) {
      all_rows<float, kTileOutputs>(some, 0, nullptr);
    } else {
      for (int64_t n = 0; n < count; ++n) all_rows<float, 1>(some, n, nullptr);
    }
  }
}

template <class W>
void plain_range(const Product<W>& p, int64_t begin, int64_t end) {
  if (p.rows == 1) return one_row(p, begin, end);
  const int64_t ahead = outputs_ahead<W>(p.inputs);
  int64_t o = begin;
  for (; o + kTileOutputs <= end; o += kTileOutputs) {
    const bool more = o + ahead + kTileOutputs <= end;
    all_rows<W, kTileOutputs>(p, o, more ? p.w + (o + ahead) * p.inputs : nullptr);
  }
  for (; o < end; ++o) all_rows<W, 1>(p, o, nullptr);
}

void mat_vec_range(const MatVec& p, int64_t begin, int64_t end) {
  switch (p.w.format) {
    case WeightFormat::float32:
      return plain_range(typed<float>(p), begin, end);
    case WeightFormat::bfloat16:
      return plain_range(typed<BFloat16>(p), begin, end);
    case WeightFormat::q8_0:
      return packed_range<WeightFormat::q8_0>(p, begin, end);
    case WeightFormat::q4_0:
      return packed_range<WeightFormat::q4_0>(p, begin, end);
    case WeightFormat::q4_1:
      return packed_range<WeightFormat::q4_1>(p, begin, end);
  }
}

}  // namespace
}  // namespace fovea::kernels
