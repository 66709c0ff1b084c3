// Gate factors of a batch, packed for the kernels: one side of the pairs row by row, the other in
// panels of columns (internal to kernels/cpu). Small beside keys and values, and shared by all
// heads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "fovea/kernels/cpu/pointwise/attention_driver.h"

namespace fovea::kernels {

/// Below this, sigma(z) is less than 2^-57: times the weight of a distant logit that leads by as
/// much, it leaves float32's range.
constexpr float kLeastGate = -40.0f;

/// Columns in fours. Sigmoids as weights join the logits instead where they may become too small.
inline GateRule gate_rule(const PairGate& gate) {
  constexpr int64_t kFarthest = int64_t{1} << 30;
  const bool steep = gate.form == PairGate::Form::sigmoid_weight && !(gate.least >= kLeastGate);
  return {.form = steep ? PairGate::Form::log_sigmoid : gate.form,
          .offset = gate.offset,
          .window = static_cast<int32_t>(std::min(gate.window, kFarthest)),
          .sinks = static_cast<int32_t>(std::min(gate.sinks, kFarthest)),
          .pitch = round_up(gate.columns, 4)};
}

/// Factors of all tokens of a batch as [batch][tokens, padded][pitch].
class GateRows {
 public:
  GateRows(const GateRule& rule, int64_t columns, const float* from, int64_t from_batch,
           int64_t batch, int64_t tokens, int64_t padded)
      : pitch_(rule.pitch), padded_(padded) {
    if (!rule.active()) return;
    rows_.assign(static_cast<size_t>(batch * padded * pitch_), 0.0f);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t n = 0; n < tokens; ++n) {
        const float* row = from + b * from_batch + n * columns;
        std::copy(row, row + columns, rows_.data() + (b * padded + n) * pitch_);
      }
    }
  }

  const float* at(int64_t b, int64_t token = 0) const {
    return rows_.empty() ? nullptr : rows_.data() + (b * padded_ + token) * pitch_;
  }

 private:
  int64_t pitch_, padded_;
  std::vector<float> rows_;
};

/// The same as panels of columns, with the positions that each panel spans.
class GateColumns {
 public:
  /// `places` gives the positions of batch row b.
  template <class PositionsOf>
  GateColumns(const GateRule& rule, int64_t columns, const float* from, int64_t from_batch,
              int64_t batch, int64_t tokens, int64_t panel, const PositionsOf& positions_of)
      : pitch_(rule.pitch), panel_(panel), panels_((tokens + panel - 1) / panel) {
    if (!rule.active()) return;
    columns_.assign(static_cast<size_t>(batch * panels_ * panel * pitch_), 0.0f);
    for (int64_t b = 0; b < batch; ++b) {
      const std::span<const int32_t> position = positions_of(b);
      for (int64_t n = 0; n < panels_; ++n) {
        const auto begin = position.begin() + n * panel;
        const auto [first, last] =
            std::minmax_element(begin, begin + std::min(panel, tokens - n * panel));
        first_.push_back(*first);
        last_.push_back(*last);
      }
      for (int64_t n = 0; n < tokens; ++n) {
        const float* row = from + b * from_batch + n * columns;
        float* to = columns_.data() + (b * panels_ + n / panel) * panel * pitch_ + n % panel;
        for (int64_t c = 0; c < columns; ++c) to[c * panel] = row[c];
      }
    }
  }

  GatePanels of(int64_t b) const {
    if (columns_.empty()) return {};
    return {.columns = columns_.data() + b * panels_ * panel_ * pitch_,
            .first = first_.data() + b * panels_,
            .last = last_.data() + b * panels_};
  }

 private:
  int64_t pitch_, panel_, panels_;
  std::vector<float> columns_;
  std::vector<int32_t> first_, last_;
};

}  // namespace fovea::kernels
