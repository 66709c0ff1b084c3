// Parts of the loops of matvec_rows.h: sums, packed rows, prefetching.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/products/matvec.h"
#include "fovea/kernels/cpu/simd/lanes.h"

namespace fovea::kernels {
namespace {

// Partial sums of one output, so that the additions of one need not wait for each other. Number and
// order are the same for every instruction set and any number of rows.
constexpr int64_t kSums = 32;
constexpr int64_t kPasses = kSums / kLanes;  // over the inputs of a tile: a vector of sums each
// Several rows: kTileRows x kTileOutputs vectors of sums, the weights' and one of x fill the
// registers, beside a product where that is not part of a sum.
constexpr int64_t kTileRows = kRegisters == 32 ? 8 : 4, kTileOutputs = kFused ? 3 : 2;
// With more rows, weights are unpacked once for all tiles. That costs a store and a load of each,
// and saves unpacking them again. With tiles of 8 rows there are two at most: not measured.
constexpr int64_t kUnpackingRows = kRegisters == 32 ? kMatVecRows : kTileRows;

// One row: a thread reads this many stretches of the weights side by side, each from one end to the
// other. The prefetchers follow long stretches and lose those that jump from row to row. (Rows o
// and o + 1 together reach 60 % of the speed; one stretch alone 75 % where pages are small.)
constexpr int64_t kStretches = 2;

/// The upper half of a vector is added to the lower one until one is left, as sum_to_four() does.
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
  if (count == kScales) {
    for (int64_t i = 0; i < kScales; i += kLanes) store(out + i, load_halves(halves + i));
    return;
  }
  for (int64_t i = 0; i < count; ++i) out[i] = load_half(halves[i]);
}

/// Calls visit.operator()<count>() for a count from 1 to `most`.
template <int64_t most, class Visit>
FOVEA_INLINE void with_count(int64_t count, const Visit& visit) {
  if constexpr (most > 1) {
    if (count < most) return with_count<most - 1>(count, visit);
  }
  visit.template operator()<most>();
}

// Prefetching.

/// The weights of a later tile of outputs, fetched while all passes over the present ones run. The
/// order is that of memory, which the hardware's own prefetchers follow.
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
