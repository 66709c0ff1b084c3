// Products of packed weights with activations rounded to 16 bits (Activations::int16), for
// matvec_rows.h: a vector holds pairs of neighbouring inputs of one output.
//
// One instruction multiplies and adds both inputs of every pair in whole numbers, which are exact;
// then each lane adds its blocks in float32 one after the other. The lanes of an output and the
// order of its additions do not depend on the number of rows or outputs at a time, so the bits do
// not either.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/int16_block.h"
#include "fovea/kernels/cpu/products/matvec_parts.h"

namespace fovea::kernels {
namespace {

/// Sums of an output side by side, and the vectors that hold them.
constexpr int64_t kLaneVectors = 16 / kLanes;

/// A unit: the blocks that the lanes take at a time. q8_0: a block, a pair to each lane. Four bits:
/// two blocks, eight lanes to each, first inputs 0 ... 15 of both (the low halves of their bytes),
/// then the others.
constexpr int64_t unit_blocks(WeightFormat format) { return format == WeightFormat::q8_0 ? 1 : 2; }

/// Rows whose sums stay in registers, beside two outputs.
constexpr int64_t kPairRows = kLaneVectors == 1 ? 8 : 2;

// Bytes from use to prefetch in a stretch of weights, for one row: measured. None at other levels.
constexpr int64_t kBytesAhead = kLanes == 8 ? 2048 : 0;

/// The weights of a unit in 16 bits, as PairRows holds the inputs.
template <WeightFormat format>
struct UnitWeights {
  static constexpr int64_t kParts = unit_blocks(format);
  Shorts part[kParts][kLaneVectors];

  FOVEA_INLINE void read(const uint8_t* q) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kLaneVectors; ++v) {
      if constexpr (format == WeightFormat::q8_0) {
        part[0][v] = load_bytes<true>(q + v * 2 * kLanes);
      } else {
        const Shorts both = load_bytes<false>(q + v * 2 * kLanes);
        part[0][v] = both & 0x0F;
        part[1][v] = both >> 4;
      }
    }
  }
};

/// The rows of x, rounded: pairs unit by unit in the order of the lanes, the d of all blocks, and
/// what m multiplies, d sum(q). Behind the last block all are zeros.
template <WeightFormat format>
class PairRows {
 public:
  static int64_t floats(int64_t rows, int64_t inputs) { return rows * of_a_row(inputs / kBlock); }

  PairRows(int64_t inputs, float* memory)
      : memory_(memory), blocks_(inputs / kBlock), of_a_row_(of_a_row(blocks_)) {}

  void round(const MatVec& p) {
    for (int64_t r = 0; r < p.rows; ++r) {
      float* const to = memory_ + r * of_a_row_;
      for (int64_t i = 0; i < of_a_row_; ++i) to[i] = 0.0f;
      auto* const pairs = reinterpret_cast<int16_t*>(to);
      for (int64_t b = 0; b < blocks_; ++b) {
        int16_t q[kBlock];
        const float d = round_block(p.x + r * p.x_stride + b * kBlock, q);
        place(q, pairs + b / kUnit * kUnit * kBlock, b % kUnit);
        int32_t sum = 0;
        for (int64_t i = 0; i < kBlock; ++i) sum += q[i];
        to[d_at() + b] = d;
        to[d_at() + padded(blocks_) + b] = d * static_cast<float>(sum);
      }
    }
  }

  FOVEA_INLINE const int16_t* pairs(int64_t row) const {
    return reinterpret_cast<const int16_t*>(memory_ + row * of_a_row_);
  }
  FOVEA_INLINE const float* d(int64_t row) const { return memory_ + row * of_a_row_ + d_at(); }
  FOVEA_INLINE const float* sums(int64_t row) const { return d(row) + padded(blocks_); }

 private:
  static constexpr int64_t kUnit = unit_blocks(format);
  static constexpr int64_t padded(int64_t blocks) {
    return (blocks + kScales - 1) / kScales * kScales;
  }
  static constexpr int64_t units(int64_t blocks) { return (blocks + kUnit - 1) / kUnit; }
  static constexpr int64_t of_a_row(int64_t blocks) {
    return units(blocks) * kUnit * kBlock / 2 + 2 * padded(blocks);
  }
  int64_t d_at() const { return units(blocks_) * kUnit * kBlock / 2; }

  static void place(const int16_t* q, int16_t* unit, int64_t block) {
    if constexpr (kUnit == 1) {
      __builtin_memcpy(unit, q, kBlock * sizeof(*q));
    } else {
      __builtin_memcpy(unit + block * kBlock / 2, q, kBlock / 2 * sizeof(*q));
      __builtin_memcpy(unit + kBlock + block * kBlock / 2, q + kBlock / 2, kBlock / 2 * sizeof(*q));
    }
  }

  float* memory_;
  int64_t blocks_, of_a_row_;
};

/// The scales of the lanes of vector v, or the one of all: of unit u of the kScales at `scales`.
template <WeightFormat format>
FOVEA_INLINE auto lane_scales(const float* scales, int64_t u, [[maybe_unused]] int64_t v) {
  if constexpr (unit_blocks(format) == 1) {
    return scales[u];
  } else {
    return load_eights(scales, 2 * u + v * kLanes / 8);
  }
}

FOVEA_INLINE float sum_of_lanes(Float (&lanes)[kLaneVectors]) {
#pragma GCC unroll 4
  for (int64_t half = kLaneVectors / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < half; ++v) lanes[v] += lanes[v + half];
  }
  return halved(sum_to_four(lanes[0]));
}

/// Outputs first, first + stride, ... of rows row ...: all blocks.
template <WeightFormat format, int64_t rows, int64_t outputs>
FOVEA_INLINE void pair_dot(const MatVec& p, const PairRows<format>& x, int64_t row, int64_t first,
                           int64_t stride) {
  constexpr int64_t kUnit = unit_blocks(format), kParts = UnitWeights<format>::kParts;
  constexpr bool kWithM = format != WeightFormat::q8_0;
  const int64_t blocks = p.inputs / kBlock;
  Float sums[rows][outputs][kLaneVectors] = {};
  for (int64_t begin = 0; begin < blocks; begin += kScales) {
    const int64_t count = blocks - begin < kScales ? blocks - begin : kScales;
    alignas(64) float scales[rows][outputs][kScales];
    const uint8_t* q[outputs];
#pragma GCC unroll 2
    for (int64_t o = 0; o < outputs; ++o) {
      const PackedRow<format> of(p, first + o * stride);
      q[o] = of.q + begin * block_quants(format);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kLaneVectors; ++v) {
        const int64_t at = begin + v * kLanes, rest = count - v * kLanes;
        const Float d = load_first_halves(of.d + at, rest);
        const Float m =
            format == WeightFormat::q4_1 ? load_first_halves(of.m + at, rest) : d * -8.0f;
#pragma GCC unroll 8
        for (int64_t r = 0; r < rows; ++r) {
          store(scales[r][o] + v * kLanes, d * load(x.d(row + r) + at));
          if constexpr (kWithM) sums[r][o][v] += m * load(x.sums(row + r) + at);
        }
      }
    }
    const auto unit = [&](int64_t u, const auto& read) {
      UnitWeights<format> w[outputs];
#pragma GCC unroll 2
      for (int64_t o = 0; o < outputs; ++o) {
        read(w[o], q[o] + u * kUnit * block_quants(format));
        if constexpr (rows == 1 && kBytesAhead > 0)
          __builtin_prefetch(q[o] + u * kUnit * block_quants(format) + kBytesAhead, 0, 3);
      }
#pragma GCC unroll 8
      for (int64_t r = 0; r < rows; ++r) {
        const int16_t* const pairs = x.pairs(row + r) + (begin + u * kUnit) * kBlock;
#pragma GCC unroll 4
        for (int64_t v = 0; v < kLaneVectors; ++v) {
#pragma GCC unroll 2
          for (int64_t o = 0; o < outputs; ++o) {
            Int whole{};
#pragma GCC unroll 2
            for (int64_t n = 0; n < kParts; ++n)
              whole = dot_pairs(whole, w[o].part[n][v], load(pairs + n * kBlock + v * 2 * kLanes));
            sums[r][o][v] +=
                __builtin_convertvector(whole, Float) * lane_scales<format>(scales[r][o], u, v);
          }
        }
      }
    };
    const int64_t whole = count / kUnit;
    for (int64_t u = 0; u < whole; ++u)
      unit(u, [](UnitWeights<format>& w, const uint8_t* from) { w.read(from); });
    if (kUnit * whole < count) {  // one block of two: nothing is read behind it
      unit(whole, [](UnitWeights<format>& w, const uint8_t* from) {
        uint8_t some[kBlock] = {};
        __builtin_memcpy(some, from, kBlock / 2);
        w.read(some);
      });
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int64_t o = 0; o < outputs; ++o)
      p.y[(row + r) * p.y_stride + first + o * stride] = sum_of_lanes(sums[r][o]);
  }
}

template <WeightFormat format, int64_t outputs>
FOVEA_INLINE void pair_outputs(const MatVec& p, const PairRows<format>& x, int64_t first,
                               int64_t stride) {
  int64_t row = 0;
  for (; row + kPairRows <= p.rows; row += kPairRows)
    pair_dot<format, kPairRows, outputs>(p, x, row, first, stride);
  if constexpr (kPairRows > 2) {
    if (row + 4 <= p.rows) {
      pair_dot<format, 4, outputs>(p, x, row, first, stride);
      row += 4;
    }
    if (row + 2 <= p.rows) {
      pair_dot<format, 2, outputs>(p, x, row, first, stride);
      row += 2;
    }
  }
  if (row < p.rows) pair_dot<format, 1, outputs>(p, x, row, first, stride);
}

template <WeightFormat format>
void int16_range(const MatVec& p, int64_t begin, int64_t end) {
  if (begin >= end) return;
  PairRows<format> x(p.inputs, mat_vec_scratch(PairRows<format>::floats(p.rows, p.inputs)));
  if (!p.same_x) x.round(p);
  const int64_t length = (end - begin) / kStretches;
  for (int64_t o = begin; o < begin + length; ++o)
    pair_outputs<format, kStretches>(p, x, o, length);
  for (int64_t o = begin + length * kStretches; o < end; ++o) pair_outputs<format, 1>(p, x, o, 1);
}

}  // namespace
}  // namespace fovea::kernels
