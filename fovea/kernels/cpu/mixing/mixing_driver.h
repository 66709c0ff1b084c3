// Shared parts of the forward and backward drivers of the mixing kernels (internal to kernels/cpu).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/kernels/cpu/mixing/mixing.h"
#include "fovea/kernels/cpu/mixing/mixing_plan.h"
#include "fovea/kernels/cpu/mixing/mixing_table.h"
#include "fovea/kernels/cpu/pointwise/attention_driver.h"

namespace fovea::kernels {

/// The kernels of the instruction set in force.
template <class T>
const MixingTable<T>& mixing_table();

/// Keys of a packed panel, at most.
constexpr int64_t kMostPanel = 64;

/// Sizes of packed operands. Values are packed `lag` rows late: row n is key n - lag, as results of
/// convolutions come.
struct MixingShape {
  PackedWidth key, value;
  int64_t bundle = 1, lag = 0;
  int64_t panels = 0;                        ///< of keys with their lag
  int64_t key_floats = 0, value_floats = 0;  ///< of one key head
  int64_t key_words = 0;                     ///< words of bits for all keys, and one more

  template <class T>
  MixingShape(const AttentionSizes& s, const MixingRule& rule, const MixingTable<T>& table)
      : key(width(table, s.head_dim)), value(width(table, s.value_dim)), bundle(mixed_heads(rule)) {
    lag = (rule.kernel_before.active() ? kKernelLag : 0) +
          (rule.kernel_after.active() ? kKernelLag : 0);
    const int64_t rows = round_up(s.keys + lag, kStepKeys);
    panels = rows / table.panel;
    key_floats = rows * key.pitch;
    value_floats = rows / table.elements * value.columns;
    key_words = (s.keys + kStepKeys - 1) / kStepKeys + 1;
  }

 private:
  template <class T>
  static PackedWidth width(const MixingTable<T>& table, int64_t elements) {
    const int64_t words = elements / table.elements;
    return {.elements = elements,
            .words = words,
            .pitch = round_up(words, table.lanes),
            .columns = round_up(elements, table.lanes)};
  }
};

/// The matrices of a mix after the softmax, stored (out, in) as those before it are; empty without.
inline std::vector<float> outputs_first(const HeadMix& mix, int64_t heads) {
  if (!mix.active()) return {};
  const int64_t m = mix.width;
  std::vector<float> turned(static_cast<size_t>(heads * m));
  for (int64_t n = 0; n < heads * m; ++n) {
    const int64_t group = n / (m * m), o = n / m % m, c = n % m;
    turned[static_cast<size_t>(n)] = mix.weights[(group * m + c) * m + o];
  }
  return turned;
}

/// UnsupportedError or ShapeError.
void check_mixing(const AttentionSizes& sizes, const ScoreParameters& rule,
                  const MixingRule& mixing, std::span<const Visits> visits);

}  // namespace fovea::kernels
