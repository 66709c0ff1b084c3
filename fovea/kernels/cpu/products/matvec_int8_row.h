// One row of activations rounded to 8 bits times packed weights, for matvec_rows.h. The weights of
// an output are multiplied where they lie, and the sums of kLanes outputs are turned.
//
// A block's sum is one of whole numbers, so results have the bits of matvec_int8_rows.h, which
// turns the weights for several rows. For one row that would be most of the work.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/products/matvec_int8_rows.h"

namespace fovea::kernels {
namespace {

/// Sums of a few products each of a block of one output with one of the row. `words` are those of
/// RoundedRows.
template <WeightFormat format>
FOVEA_INLINE auto block_products(const uint8_t* q, const uint32_t* words) {
  if constexpr (format == WeightFormat::q8_0) {
    const auto bytes = reinterpret_cast<Shorts>(load_first_bytes(q, kBlock));
    const auto* const pairs = reinterpret_cast<const int16_t*>(words);
    return dot_pairs(dot_pairs(Int{}, (bytes << 8) >> 8, load(pairs)), bytes >> 8,
                     load(pairs + 2 * kLanes));
  } else {
    return products_in_pairs(nibbles(q), words);
  }
}

/// kLanes outputs from `first` on, or `outputs` and the last of them again for the rest.
template <WeightFormat format, bool whole>
FOVEA_INLINE Float row_sums(const MatVec& p, const RoundedRows<format>& x, int64_t first,
                            int64_t outputs, PrefetchLines& lines) {
  constexpr bool kWithM = block_scales(format) == 2;
  const PackedRow<format> row(p, first);
  const RowsApart<whole> rows{row_bytes(format, p.inputs), outputs};
  const uint8_t* q[kLanes];
  q[0] = row.q;
#pragma GCC unroll 8
  for (int64_t o = 1; o < kLanes; ++o) q[o] = rows.next(q[o - 1], o - 1);

  const int64_t blocks = p.inputs / kBlock;
  alignas(64) float d[kLanes * kLanes], m[kLanes * kLanes];
  Float all{};
  for (int64_t begin = 0; begin < blocks; begin += kLanes) {
    const int64_t rest = blocks - begin, count = rest < kLanes ? rest : kLanes;
    turn_scales(row.d + begin, rows, count, d);
    if constexpr (kWithM) turn_scales(row.m + begin, rows, count, m);
    for (int64_t b = 0; b < count; ++b) {
      lines.advance<1>();
      const int64_t at = (begin + b) * block_quants(format);
      decltype(block_products<format>(q[0], nullptr)) parts[kLanes];
#pragma GCC unroll 8
      for (int64_t o = 0; o < kLanes; ++o)
        parts[o] = block_products<format>(q[o] + at, x.words(begin + b));
      Int sum = sums_of_outputs(parts);
      if constexpr (zero_of(format) != 0) sum += *x.firsts(begin + b);
      all += __builtin_convertvector(sum, Float) * (load(d + b * kLanes) * *x.d(begin + b));
      if constexpr (kWithM) all += load(m + b * kLanes) * *x.sums(begin + b);
    }
  }
  return all;
}

template <WeightFormat format>
void int8_row_range(const MatVec& p, int64_t begin, int64_t end) {
  RoundedRows<format> x(1, mat_vec_scratch(RoundedRows<format>::floats(1, p.inputs)));
  if (!p.same_x) x.round(p, 0, 1);
  const int64_t bytes = row_bytes(format, p.inputs), ahead = outputs_ahead(bytes, kLanes);
  const auto* const all = static_cast<const char*>(p.w.data);
  for (int64_t o = begin; o < end; o += kLanes) {
    const int64_t outputs = end - o < kLanes ? end - o : kLanes;
    const bool more = o + ahead + kLanes <= end;
    PrefetchLines lines({more ? all + (o + ahead) * bytes : nullptr, kLanes * bytes},
                        p.inputs / kBlock);
    float sums[kLanes];
    if (outputs == kLanes) {
      store(sums, row_sums<format, true>(p, x, o, outputs, lines));
    } else {
      store(sums, row_sums<format, false>(p, x, o, outputs, lines));
    }
    __builtin_memcpy(p.y + o, sums, static_cast<size_t>(outputs) * sizeof(float));
  }
}

}  // namespace
}  // namespace fovea::kernels
