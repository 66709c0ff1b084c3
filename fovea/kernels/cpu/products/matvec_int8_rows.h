// Products of packed weights with activations rounded to 8 bits (Activations::int8), for
// matvec_rows.h: a vector holds one number of kVector outputs.
//
// The q of kVector outputs are turned once for all rows, so that a vector holds the same few inputs
// of each output. One instruction then multiplies them with the same inputs of a row. Whole numbers
// are exact in any order, and each output adds its blocks in float32 one after the other: results
// have the same bits for any number of rows and of outputs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/int8_block.h"
#include "fovea/kernels/cpu/products/matvec_vectors.h"

namespace fovea::kernels {
namespace {

// A word of 32 bits holds four inputs in bytes where an instruction multiplies those (unsigned
// weights, signed activations), else two inputs in 16 bits.
#if defined(__AVX512VNNI__)
constexpr bool kFours = true;
#else
constexpr bool kFours = false;
#endif
constexpr int64_t kBlockWords = kBlock / (kFours ? 4 : 2);

/// Blocks turned at a time: those of kVector outputs and the rows' stay in the first-level cache.
constexpr int64_t kTurnedBlocks = 32;

/// What an unsigned q of a tile is larger than the number that d multiplies.
constexpr int32_t zero_of(WeightFormat format) {
  if (!kFours || format == WeightFormat::q4_1) return 0;
  return format == WeightFormat::q8_0 ? 128 : 8;
}

/// sum + products of the inputs in a word: w of each output, x the same for all.
FOVEA_INLINE Ints add_products(Ints sum, Words w, uint32_t x) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum),
                                                    reinterpret_cast<__m512i>(w),
                                                    _mm512_set1_epi32(static_cast<int32_t>(x))));
#elif defined(__AVX512F__)
  return sum + reinterpret_cast<Ints>(_mm512_madd_epi16(
                   reinterpret_cast<__m512i>(w), _mm512_set1_epi32(static_cast<int32_t>(x))));
#elif defined(__AVX2__)
  return sum + reinterpret_cast<Ints>(_mm256_madd_epi16(
                   reinterpret_cast<__m256i>(w), _mm256_set1_epi32(static_cast<int32_t>(x))));
#else
  const auto both = reinterpret_cast<Ints>(w);
  const auto pair = static_cast<int32_t>(x);
  return sum + ((both << 16) >> 16) * static_cast<int16_t>(x) + (both >> 16) * (pair >> 16);
#endif
}

/// At most kVector blocks of a row, rounded as round_block() does it.
struct RoundedBlocks {
  alignas(64) int8_t q[kVector][kBlock];
  float d[kVector];
  int32_t sums[kVector];  ///< of the q

  FOVEA_INLINE void round(const float* x, int64_t count);
};

#if defined(__AVX2__)

/// The nearest whole numbers, ties to even.
FOVEA_INLINE Ints to_nearest(Vector x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Ints>(_mm512_maskz_cvtps_epi32(0xFFFF, reinterpret_cast<__m512>(x)));
#else
  return reinterpret_cast<Ints>(_mm256_cvtps_epi32(reinterpret_cast<__m256>(x)));
#endif
}

/// kBlock whole numbers, which fit, in bytes.
FOVEA_INLINE void store_bytes(const Ints (&x)[kPasses], int8_t* to) {
#if defined(__AVX512F__)
  for (int64_t v = 0; v < kPasses; ++v)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + v * kVector),
                     _mm512_maskz_cvtepi32_epi8(0xFFFF, reinterpret_cast<__m512i>(x[v])));
#else
  const auto in = [&](int64_t v) { return reinterpret_cast<__m256i>(x[v]); };
  const __m256i bytes =
      _mm256_packs_epi16(_mm256_packs_epi32(in(0), in(1)), _mm256_packs_epi32(in(2), in(3)));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(bytes, order));
#endif
}

// The maxima and sums of kVector blocks are found side by side.
FOVEA_INLINE void RoundedBlocks::round(const float* x, int64_t count) {
  Words part[kVector] = {};
  for (int64_t b = 0; b < count; ++b) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kPasses; ++v) {
      const Words bits =
          reinterpret_cast<Words>(load_vector(x + b * kBlock + v * kVector)) & 0x7FFFFFFF;
      part[b] = bits > part[b] ? bits : part[b];
    }
  }
  turn_words(part);
  Words bits = part[0];
#pragma GCC unroll 16
  for (int64_t n = 1; n < kVector; ++n) bits = part[n] > bits ? part[n] : bits;
  const auto largest = reinterpret_cast<Vector>(bits);
  const Vector zero{}, nan = zero + __builtin_nanf("");
  const auto inside = bits < 0x7F800000 && largest >= kSmallestInt8Block;
  const Vector inverses = inside ? 127.0f / largest : zero;
  *reinterpret_cast<Vector*>(d) = bits >= 0x7F800000 ? nan : inside ? largest / 127.0f : zero;

  float inverse[kVector];
  *reinterpret_cast<Vector*>(inverse) = inverses;
  for (int64_t b = 0; b < count; ++b) {
    Ints whole[kPasses];
    Ints all{};
#pragma GCC unroll 4
    for (int64_t v = 0; v < kPasses; ++v) {
      whole[v] = to_nearest(load_vector(x + b * kBlock + v * kVector) * inverse[b]);
      all += whole[v];
    }
    store_bytes(whole, q[b]);
    part[b] = reinterpret_cast<Words>(all);
  }
  turn_words(part);
  Words total = part[0];
#pragma GCC unroll 16
  for (int64_t n = 1; n < kVector; ++n) total += part[n];
  *reinterpret_cast<Words*>(sums) = total;
}

#else

FOVEA_INLINE void RoundedBlocks::round(const float* x, int64_t count) {
  for (int64_t b = 0; b < count; ++b) {
    d[b] = round_block(x + b * kBlock, q[b]);
    sums[b] = 0;
    for (int64_t i = 0; i < kBlock; ++i) sums[b] += q[b][i];
  }
}

#endif

/// At most kTileRows rows of x, rounded. Of each block the words of all rows one after the other,
/// then their d, then what stands beside it: a tile reads one stretch from one end to the other.
class RoundedRows {
 public:
  static int64_t floats(int64_t rows, int64_t inputs) { return inputs / kBlock * block(rows); }

  RoundedRows() = default;
  RoundedRows(int64_t rows, float* memory)
      : words_(reinterpret_cast<uint32_t*>(memory)),
        d_(memory + rows * kBlockWords),
        beside_(d_ + rows),
        of_a_block_(block(rows)) {}

  void round(const MatVec& p, int64_t row, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* const x = p.x + (row + r) * p.x_stride;
      for (int64_t b = 0; b < p.inputs / kBlock; b += kVector) {
        const int64_t rest = p.inputs / kBlock - b, count = rest < kVector ? rest : kVector;
        RoundedBlocks some;
        some.round(x + b * kBlock, count);
        for (int64_t n = 0; n < count; ++n)
          place(some.q[n], some.d[n], some.sums[n], (b + n) * of_a_block_, r, p.w.format);
      }
    }
  }

  /// Word n of row r of a block at [r * kBlockWords + n].
  FOVEA_INLINE const uint32_t* words(int64_t block) const { return words_ + block * of_a_block_; }
  FOVEA_INLINE const float* d(int64_t block) const { return d_ + block * of_a_block_; }
  /// d sum(q), which m multiplies; or what the sum of whole numbers begins with, -zero sum(q).
  FOVEA_INLINE const float* sums(int64_t block) const { return beside_ + block * of_a_block_; }
  FOVEA_INLINE const int32_t* firsts(int64_t block) const {
    return reinterpret_cast<const int32_t*>(beside_) + block * of_a_block_;
  }

 private:
  static int64_t block(int64_t rows) { return rows * (kBlockWords + 2); }

  FOVEA_INLINE void place(const int8_t* q, float d, int32_t sum, int64_t at, int64_t row,
                          WeightFormat format) {
    uint32_t* const to = words_ + at + row * kBlockWords;
    if constexpr (kFours) {
      __builtin_memcpy(to, q, kBlock);
    } else {  // as place_fours() takes bytes apart
      typedef int16_t Pairs __attribute__((vector_size(kBlock), aligned(1), may_alias));
      const Pairs pairs = *reinterpret_cast<const Pairs*>(q);
      *reinterpret_cast<Pairs*>(to) = (pairs << 8) >> 8;
      *reinterpret_cast<Pairs*>(to + kBlockWords / 2) = pairs >> 8;
    }
    d_[at + row] = d;
    if (block_scales(format) == 2) {
      beside_[at + row] = d * static_cast<float>(sum);
    } else {  // of a block that is not finite, d is NaN and its sum may be anything
      reinterpret_cast<int32_t*>(beside_)[at + row] = d == d ? -zero_of(format) * sum : 0;
    }
  }

  uint32_t* words_ = nullptr;
  float *d_ = nullptr, *beside_ = nullptr;
  int64_t of_a_block_ = 0;
};

/// Some blocks of kVector outputs, turned.
template <WeightFormat format>
class TurnedBlocks {
 public:
  static constexpr bool kWithM = block_scales(format) == 2;
  static int64_t floats() { return kTurnedBlocks * kVector * (kBlockWords + 2); }

  explicit TurnedBlocks(float* memory)
      : words_(reinterpret_cast<Words*>(memory)),
        d_(memory + kTurnedBlocks * kVector * kBlockWords),
        m_(d_ + kTurnedBlocks * kVector) {}

  /// kVector outputs from `first` on, or `outputs` and the last of them again for the rest; blocks
  /// [begin, begin + count).
  template <bool whole>
  FOVEA_INLINE void turn(const MatVec& p, int64_t first, int64_t outputs, int64_t begin,
                         int64_t count, PrefetchLines& lines) {
    const PackedRow<format> row(p, first);
    const RowsApart<whole> rows{row_bytes(format, p.inputs), outputs};
    const uint8_t* const q = row.q + begin * block_quants(format);
    const int64_t bytes = count * block_quants(format);
    for (int64_t at = 0; at < bytes; at += 4 * kVector) {
      lines.advance<1>();
      Words w[kVector];
      const uint8_t* from = q + at;
#pragma GCC unroll 16
      for (int64_t o = 0; o < kVector; ++o, from = rows.next(from, o - 1))
        w[o] = load_words(from, bytes - at);
      turn_words(w);
      // A load is whole blocks or, where vectors are short, a part of one.
      constexpr int64_t kStored = block_quants(format) / 4;
      Words* const to = words_ + at / block_quants(format) * kBlockWords;
      const int64_t part = kVector >= kStored ? 0 : at / 4 % kStored;
#pragma GCC unroll 16
      for (int64_t k = 0; k < kVector; ++k)
        place_words(w[k], to + k / kStored * kBlockWords, part + k % kStored);
    }
    for (int64_t b = 0; b < count; b += kVector) {
      turn_scales(row.d + begin + b, rows, count - b, d_ + b * kVector);
      if constexpr (kWithM) turn_scales(row.m + begin + b, rows, count - b, m_ + b * kVector);
    }
  }

  FOVEA_INLINE Words words(int64_t block, int64_t n) const {
    return words_[block * kBlockWords + n];
  }
  FOVEA_INLINE Vector d(int64_t block) const { return load_vector(d_ + block * kVector); }
  FOVEA_INLINE Vector m(int64_t block) const { return load_vector(m_ + block * kVector); }

 private:
  /// The rows of kVector outputs, or of fewer and the last of them again.
  template <bool whole>
  struct RowsApart {
    int64_t stride, outputs;
    template <class X>
    FOVEA_INLINE const X* next(const X* row, int64_t o) const {
      asm("" : "+r"(row));  // GCC would hold the addresses of all rows at once
      return row + (whole || o + 1 < outputs ? stride : 0) / static_cast<int64_t>(sizeof(X));
    }
  };

  /// Four bytes of each output, word n of the stored q of the block at `to`.
  FOVEA_INLINE static void place_words(Words w, Words* to, int64_t n) {
    if constexpr (format == WeightFormat::q8_0) {
      place_fours(w, to + n);
    } else {
      place_fours(w & 0x0F0F0F0F, to + n);
      place_fours(w >> 4 & 0x0F0F0F0F, to + n + block_quants(format) / 4);
    }
  }
  /// Four inputs of each output.
  FOVEA_INLINE static void place_fours(Words w, Words* to) {
    if constexpr (kFours) {
      to[0] = format == WeightFormat::q8_0 ? w ^ 0x80808080 : w;
      return;
    }
    const auto bytes = reinterpret_cast<Shorts>(w);
    Shorts even = (bytes << 8) >> 8, odd = bytes >> 8;
    if constexpr (format == WeightFormat::q4_0) even -= 8, odd -= 8;
    to[0] = reinterpret_cast<Words>(even);
    to[kBlockWords / 2] = reinterpret_cast<Words>(odd);
  }

  /// kVector blocks of each output, or `count` where those are fewer.
  template <bool whole>
  FOVEA_INLINE static void turn_scales(const uint16_t* halves, const RowsApart<whole>& rows,
                                       int64_t count, float* to) {
    Words w[kVector];
#pragma GCC unroll 16
    for (int64_t o = 0; o < kVector; ++o, halves = rows.next(halves, o - 1))
      w[o] = widen_some(halves, count);
    turn_words(w);
#pragma GCC unroll 16
    for (int64_t b = 0; b < kVector; ++b) *reinterpret_cast<Words*>(to + b * kVector) = w[b];
  }

  Words* words_;
  float *d_, *m_;
};

/// Adds `count` blocks from `begin` on to the sums of some rows of kVector outputs.
template <WeightFormat format, int64_t rows>
FOVEA_INLINE void add_blocks(const TurnedBlocks<format>& w, const RoundedRows& x, int64_t begin,
                             int64_t count, float* sums) {
  Vector all[rows];
#pragma GCC unroll 8
  for (int64_t r = 0; r < rows; ++r) all[r] = load_vector(sums + r * kVector);
  for (int64_t b = 0; b < count; ++b) {
    Ints whole[rows];
    const uint32_t* const words = x.words(begin + b);
    const int32_t* const firsts = x.firsts(begin + b);
#pragma GCC unroll 8
    for (int64_t r = 0; r < rows; ++r)
      whole[r] = zero_of(format) != 0 ? Ints{} + firsts[r] : Ints{};
#pragma GCC unroll 16
    for (int64_t n = 0; n < kBlockWords; ++n) {
      const Words weights = w.words(b, n);
#pragma GCC unroll 8
      for (int64_t r = 0; r < rows; ++r)
        whole[r] = add_products(whole[r], weights, words[r * kBlockWords + n]);
    }
    const Vector d = w.d(b);
    const float *const x_d = x.d(begin + b), *const x_sums = x.sums(begin + b);
#pragma GCC unroll 8
    for (int64_t r = 0; r < rows; ++r) {
      all[r] += __builtin_convertvector(whole[r], Vector) * (d * x_d[r]);
      if constexpr (TurnedBlocks<format>::kWithM) all[r] += w.m(b) * x_sums[r];
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < rows; ++r) *reinterpret_cast<Vector*>(sums + r * kVector) = all[r];
}

template <WeightFormat format, class... Rest>
FOVEA_INLINE void add_blocks_of_rows(int64_t rows, const Rest&... rest) {
  switch (rows) {
    case 1:
      return add_blocks<format, 1>(rest...);
    case 2:
      return add_blocks<format, 2>(rest...);
    case 3:
      return add_blocks<format, 3>(rest...);
    case 4:
      return add_blocks<format, 4>(rest...);
#if defined(__AVX512F__)
    case 5:
      return add_blocks<format, 5>(rest...);
    case 6:
      return add_blocks<format, 6>(rest...);
    case 7:
      return add_blocks<format, 7>(rest...);
    default:
      return add_blocks<format, 8>(rest...);
#endif
  }
}

template <WeightFormat format>
void int8_range(const MatVec& p, int64_t begin, int64_t end) {
  if (begin >= end) return;
  constexpr int64_t kMostTiles = (kMatVecRows + kTileRows - 1) / kTileRows;
  const int64_t blocks = p.inputs / kBlock, tiles = (p.rows + kTileRows - 1) / kTileRows;
  const auto row_of = [&](int64_t t) { return p.rows * t / tiles; };
  // The rounded rows first: the next call finds them there.
  const int64_t rounded = RoundedRows::floats(p.rows, p.inputs);
  float* memory =
      mat_vec_scratch(rounded + (kMatVecRows + 1) * kVector + TurnedBlocks<format>::floats());
  float* const sums = memory + (rounded + kVector - 1) / kVector * kVector;
  TurnedBlocks<format> turned(sums + kMatVecRows * kVector);
  RoundedRows x[kMostTiles];
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t rows = row_of(t + 1) - row_of(t);
    x[t] = RoundedRows(rows, memory);
    if (!p.same_x) x[t].round(p, row_of(t), rows);
    memory += RoundedRows::floats(rows, p.inputs);
  }

  const int64_t bytes = row_bytes(p.w.format, p.inputs), ahead = outputs_ahead(bytes, kVector);
  const auto* const all = static_cast<const char*>(p.w.data);
  const int64_t loads = (blocks * block_quants(format) + 4 * kVector - 1) / (4 * kVector);
  for (int64_t o = begin; o < end; o += kVector) {
    const int64_t outputs = end - o < kVector ? end - o : kVector;
    const bool more = o + ahead + kVector <= end;
    PrefetchLines lines({more ? all + (o + ahead) * bytes : nullptr, kVector * bytes}, loads);
    for (int64_t i = 0; i < p.rows * kVector; ++i) sums[i] = 0.0f;
    for (int64_t b = 0; b < blocks; b += kTurnedBlocks) {
      const int64_t count = blocks - b < kTurnedBlocks ? blocks - b : kTurnedBlocks;
      if (outputs == kVector) {
        turned.template turn<true>(p, o, outputs, b, count, lines);
      } else {
        turned.template turn<false>(p, o, outputs, b, count, lines);
      }
      for (int64_t t = 0; t < tiles; ++t)
        add_blocks_of_rows<format>(row_of(t + 1) - row_of(t), turned, x[t], b, count,
                                   sums + row_of(t) * kVector);
    }
    for (int64_t r = 0; r < p.rows; ++r)
      __builtin_memcpy(p.y + r * p.y_stride + o, sums + r * kVector,
                       static_cast<size_t>(outputs) * sizeof(float));
  }
}

void round_rows_to_int8(const float* x, int64_t n, float* y) {
  for (int64_t at = 0; at + kBlock <= n; at += kBlock) {
    int8_t q[kBlock];
    const float d = round_block(x + at, q);
    for (int64_t i = 0; i < kBlock; ++i) y[at + i] = d * static_cast<float>(q[i]);
  }
}

}  // namespace
}  // namespace fovea::kernels
