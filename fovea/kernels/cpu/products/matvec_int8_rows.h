// Products of packed weights with activations rounded to 8 bits (Activations::int8), for
// matvec_rows.h: a vector holds one number of kLanes outputs.
//
// The q of kLanes outputs are turned once for all rows, so that a vector holds the same few inputs
// of each output. One instruction then multiplies them with the same inputs of a row. Whole numbers
// are exact in any order; each output adds its blocks in float32 one after the other. So results
// have the same bits for any number of rows and of outputs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/int8_block.h"
#include "fovea/kernels/cpu/products/matvec_parts.h"
#include "fovea/kernels/cpu/simd/byte_sums.h"

namespace fovea::kernels {
namespace {

/// The inputs that a word of 32 bits holds: four in bytes where an instruction multiplies those
/// (unsigned weights, signed activations), else two in 16 bits. AVX2 adds the products of bytes in
/// pairs of 16 bits, which hold a block of weights below 16: 8 pairs of 2 * 15 * 127 are 30,480.
constexpr bool multiplies_fours(WeightFormat format) {
  return kDotsFours || (kAddsFoursInPairs && format != WeightFormat::q8_0);
}
constexpr int64_t block_words(WeightFormat format) {
  return kBlock / (multiplies_fours(format) ? 4 : 2);
}

/// Blocks turned at a time: those of kLanes outputs and the rows' stay in the first-level cache.
constexpr int64_t kTurnedBlocks = 32;

/// The difference of an unsigned q of a tile and the number that d multiplies.
constexpr int32_t zero_of(WeightFormat format) {
  if (!multiplies_fours(format) || format == WeightFormat::q4_1) return 0;
  return format == WeightFormat::q8_0 ? 128 : 8;
}

/// Sums of products of a block: w of each output, x the same for all.
template <WeightFormat format>
class BlockSum {
 public:
  /// The products of the inputs in a word.
  FOVEA_INLINE void add(Bits w, uint32_t x) {
    if constexpr (kDotsFours) {
      whole_ = dot_fours(whole_, w, x);
    } else if constexpr (multiplies_fours(format)) {
      pairs_ = add_fours(pairs_, w, x);
    } else {
      const Int same = broadcast(static_cast<int32_t>(x));
      whole_ = dot_pairs(whole_, reinterpret_cast<Shorts>(w), reinterpret_cast<Shorts>(same));
    }
  }
  FOVEA_INLINE Int sum(int32_t first) const {
    Int sum = whole_;
    if constexpr (multiplies_fours(format) && !kDotsFours) sum = sum_of_pairs(pairs_);
    if constexpr (zero_of(format) != 0) sum += first;
    return sum;
  }

 private:
  Int whole_{};
  Shorts pairs_{};
};

/// At most kLanes blocks of a row, rounded as round_block() does it.
struct RoundedBlocks {
  alignas(64) int8_t q[kLanes][kBlock];
  float d[kLanes];
  int32_t sums[kLanes];  ///< of the q

  FOVEA_INLINE void round(const float* x, int64_t count);
};

// The maxima and sums of kLanes blocks are found side by side.
FOVEA_INLINE void RoundedBlocks::round(const float* x, int64_t count) {
  Bits part[kLanes] = {};
  for (int64_t b = 0; b < count; ++b) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kPasses; ++v) {
      const Bits bits = reinterpret_cast<Bits>(load(x + b * kBlock + v * kLanes)) & 0x7FFFFFFF;
      part[b] = bits > part[b] ? bits : part[b];
    }
  }
  transpose(part);
  Bits bits = part[0];
#pragma GCC unroll 16
  for (int64_t n = 1; n < kLanes; ++n) bits = part[n] > bits ? part[n] : bits;
  const auto largest = reinterpret_cast<Float>(bits);
  const Float zero{}, nan = zero + __builtin_nanf("");
  const auto inside = bits < 0x7F800000 && largest >= kSmallestInt8Block;
  const Float inverses = inside ? 127.0f / largest : zero;
  store(d, bits >= 0x7F800000 ? nan : inside ? largest / 127.0f : zero);

  float inverse[kLanes];
  store(inverse, inverses);
  for (int64_t b = 0; b < count; ++b) {
    Int whole[kPasses];
    Int all{};
#pragma GCC unroll 4
    for (int64_t v = 0; v < kPasses; ++v) {
      whole[v] = to_nearest(load(x + b * kBlock + v * kLanes) * inverse[b]);
      all += whole[v];
    }
    store_bytes(whole, q[b]);
    part[b] = reinterpret_cast<Bits>(all);
  }
  transpose(part);
  Bits total = part[0];
#pragma GCC unroll 16
  for (int64_t n = 1; n < kLanes; ++n) total += part[n];
  store(sums, reinterpret_cast<Int>(total));
}

/// At most kTileRows rows of x, rounded. A block is the words of all rows one after the other, then
/// their d, then their sums: a tile reads one stretch from one end to the other.
template <WeightFormat format>
class RoundedRows {
 public:
  static constexpr int64_t kBlockWords = block_words(format);

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
      for (int64_t b = 0; b < p.inputs / kBlock; b += kLanes) {
        const int64_t rest = p.inputs / kBlock - b, count = rest < kLanes ? rest : kLanes;
        RoundedBlocks some;
        some.round(x + b * kBlock, count);
        for (int64_t n = 0; n < count; ++n)
          place(some.q[n], some.d[n], some.sums[n], (b + n) * of_a_block_, r);
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

  FOVEA_INLINE void place(const int8_t* q, float d, int32_t sum, int64_t at, int64_t row) {
    uint32_t* const to = words_ + at + row * kBlockWords;
    if constexpr (multiplies_fours(format)) {
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

/// Some blocks of kLanes outputs, turned.
template <WeightFormat format>
class TurnedBlocks {
 public:
  static constexpr bool kWithM = block_scales(format) == 2;
  static constexpr int64_t kBlockWords = block_words(format);
  static int64_t floats() { return kTurnedBlocks * kLanes * (kBlockWords + 2); }

  explicit TurnedBlocks(float* memory)
      : words_(reinterpret_cast<Bits*>(memory)),
        d_(memory + kTurnedBlocks * kLanes * kBlockWords),
        m_(d_ + kTurnedBlocks * kLanes) {}

  /// kLanes outputs from `first` on, or `outputs` and the last of them again for the rest; blocks
  /// [begin, begin + count).
  template <bool whole>
  FOVEA_INLINE void turn(const MatVec& p, int64_t first, int64_t outputs, int64_t begin,
                         int64_t count, PrefetchLines& lines) {
    const PackedRow<format> row(p, first);
    const RowsApart<whole> rows{row_bytes(format, p.inputs), outputs};
    const uint8_t* const q = row.q + begin * block_quants(format);
    const int64_t bytes = count * block_quants(format);
    for (int64_t at = 0; at < bytes; at += 4 * kLanes) {
      lines.advance<1>();
      Bits w[kLanes];
      const uint8_t* from = q + at;
#pragma GCC unroll 16
      for (int64_t o = 0; o < kLanes; ++o, from = rows.next(from, o - 1))
        w[o] = reinterpret_cast<Bits>(load_first_bytes(from, bytes - at));
      transpose(w);
      // A load is whole blocks or, where vectors are short, a part of one.
      constexpr int64_t kStored = block_quants(format) / 4;
      Bits* const to = words_ + at / block_quants(format) * kBlockWords;
      const int64_t part = kLanes >= kStored ? 0 : at / 4 % kStored;
#pragma GCC unroll 16
      for (int64_t k = 0; k < kLanes; ++k)
        place_words(w[k], to + k / kStored * kBlockWords, part + k % kStored);
    }
    for (int64_t b = 0; b < count; b += kLanes) {
      turn_scales(row.d + begin + b, rows, count - b, d_ + b * kLanes);
      if constexpr (kWithM) turn_scales(row.m + begin + b, rows, count - b, m_ + b * kLanes);
    }
  }

  FOVEA_INLINE Bits words(int64_t block, int64_t n) const {
    return words_[block * kBlockWords + n];
  }
  FOVEA_INLINE Float d(int64_t block) const { return load(d_ + block * kLanes); }
  FOVEA_INLINE Float m(int64_t block) const { return load(m_ + block * kLanes); }

 private:
  /// The rows of kLanes outputs, or of fewer and the last of them again.
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
  FOVEA_INLINE static void place_words(Bits w, Bits* to, int64_t n) {
    if constexpr (format == WeightFormat::q8_0) {
      place_fours(w, to + n);
    } else {
      place_fours(w & 0x0F0F0F0F, to + n);
      place_fours(w >> 4 & 0x0F0F0F0F, to + n + block_quants(format) / 4);
    }
  }
  /// Four inputs of each output.
  FOVEA_INLINE static void place_fours(Bits w, Bits* to) {
    if constexpr (multiplies_fours(format)) {
      to[0] = format == WeightFormat::q8_0 ? w ^ 0x80808080 : w;
      return;
    }
    const auto bytes = reinterpret_cast<Shorts>(w);
    Shorts even = (bytes << 8) >> 8, odd = bytes >> 8;
    if constexpr (format == WeightFormat::q4_0) even -= 8, odd -= 8;
    to[0] = reinterpret_cast<Bits>(even);
    to[kBlockWords / 2] = reinterpret_cast<Bits>(odd);
  }

  /// kLanes blocks of each output, or `count` where those are fewer.
  template <bool whole>
  FOVEA_INLINE static void turn_scales(const uint16_t* halves, const RowsApart<whole>& rows,
                                       int64_t count, float* to) {
    Float w[kLanes];
#pragma GCC unroll 16
    for (int64_t o = 0; o < kLanes; ++o, halves = rows.next(halves, o - 1))
      w[o] = load_first_halves(halves, count);
    transpose(w);
#pragma GCC unroll 16
    for (int64_t b = 0; b < kLanes; ++b) store(to + b * kLanes, w[b]);
  }

  Bits* words_;
  float *d_, *m_;
};

/// Adds `count` blocks from `begin` on to the sums of some rows of kLanes outputs.
template <WeightFormat format, int64_t rows>
FOVEA_INLINE void add_blocks(const TurnedBlocks<format>& w, const RoundedRows<format>& x,
                             int64_t begin, int64_t count, float* sums) {
  constexpr int64_t kBlockWords = block_words(format);
  Float all[rows];
#pragma GCC unroll 8
  for (int64_t r = 0; r < rows; ++r) all[r] = load(sums + r * kLanes);
  for (int64_t b = 0; b < count; ++b) {
    BlockSum<format> block[rows];
    const uint32_t* const words = x.words(begin + b);
    const int32_t* const firsts = x.firsts(begin + b);
#pragma GCC unroll 16
    for (int64_t n = 0; n < kBlockWords; ++n) {
      const Bits weights = w.words(b, n);
#pragma GCC unroll 8
      for (int64_t r = 0; r < rows; ++r) block[r].add(weights, words[r * kBlockWords + n]);
    }
    const Float d = w.d(b);
    const float *const x_d = x.d(begin + b), *const x_sums = x.sums(begin + b);
#pragma GCC unroll 8
    for (int64_t r = 0; r < rows; ++r) {
      all[r] += __builtin_convertvector(block[r].sum(firsts[r]), Float) * (d * x_d[r]);
      if constexpr (TurnedBlocks<format>::kWithM) all[r] += w.m(b) * x_sums[r];
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < rows; ++r) store(sums + r * kLanes, all[r]);
}

template <WeightFormat format>
void int8_range(const MatVec& p, int64_t begin, int64_t end) {
  if (begin >= end) return;
  constexpr int64_t kMostTiles = (kMatVecRows + kTileRows - 1) / kTileRows;
  const int64_t blocks = p.inputs / kBlock, tiles = (p.rows + kTileRows - 1) / kTileRows;
  const auto row_of = [&](int64_t t) { return p.rows * t / tiles; };
  // The rounded rows first: the next call finds them there.
  const int64_t rounded = RoundedRows<format>::floats(p.rows, p.inputs);
  float* memory =
      mat_vec_scratch(rounded + (kMatVecRows + 1) * kLanes + TurnedBlocks<format>::floats());
  float* const sums = memory + (rounded + kLanes - 1) / kLanes * kLanes;
  TurnedBlocks<format> turned(sums + kMatVecRows * kLanes);
  RoundedRows<format> x[kMostTiles];
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t rows = row_of(t + 1) - row_of(t);
    x[t] = RoundedRows<format>(rows, memory);
    if (!p.same_x) x[t].round(p, row_of(t), rows);
    memory += RoundedRows<format>::floats(rows, p.inputs);
  }

  const int64_t bytes = row_bytes(p.w.format, p.inputs), ahead = outputs_ahead(bytes, kLanes);
  const auto* const all = static_cast<const char*>(p.w.data);
  const int64_t loads = (blocks * block_quants(format) + 4 * kLanes - 1) / (4 * kLanes);
  for (int64_t o = begin; o < end; o += kLanes) {
    const int64_t outputs = end - o < kLanes ? end - o : kLanes;
    const bool more = o + ahead + kLanes <= end;
    PrefetchLines lines({more ? all + (o + ahead) * bytes : nullptr, kLanes * bytes}, loads);
    for (int64_t i = 0; i < p.rows * kLanes; ++i) sums[i] = 0.0f;
    for (int64_t b = 0; b < blocks; b += kTurnedBlocks) {
      const int64_t count = blocks - b < kTurnedBlocks ? blocks - b : kTurnedBlocks;
      if (outputs == kLanes) {
        turned.template turn<true>(p, o, outputs, b, count, lines);
      } else {
        turned.template turn<false>(p, o, outputs, b, count, lines);
      }
      for (int64_t t = 0; t < tiles; ++t)
        with_count<kTileRows>(row_of(t + 1) - row_of(t), [&]<int64_t rows>() FOVEA_ALWAYS {
          add_blocks<format, rows>(turned, x[t], b, count, sums + row_of(t) * kLanes);
        });
    }
    for (int64_t r = 0; r < p.rows; ++r)
      __builtin_memcpy(p.y + r * p.y_stride + o, sums + r * kLanes,
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
