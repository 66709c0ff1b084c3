// The gradient of a temperature by rows from sums over their keys (kTurnSums), of all rows of a
// call (internal to kernels/cpu).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <vector>

#include "fovea/kernels/common/contract.h"
#include "fovea/kernels/common/few_keys.h"
#include "fovea/kernels/cpu/pointwise/attention_table.h"

namespace fovea::kernels {

/// Columns of sums for dq: with the gradient of a temperature by rows, kTurnSums of them stand in
/// the columns from key.columns on.
inline int64_t query_columns(const PackedWidth& key, bool turns) {
  return key.columns + (turns ? 16 : 0);  // whole vectors of every instruction set
}

/// `Problem`: AttentionBackward, GroupedBackward or MixingBackward. Nothing where no such gradient
/// is wanted.
template <class Problem>
class RowTurns {
 public:
  /// Keeps a reference.
  explicit RowTurns(const Problem& problem, bool wanted = true) : p_(problem), s_(problem.sizes) {
    if (wanted && p_.dtau != nullptr && p_.rule.tau != nullptr)
      own_.resize(static_cast<size_t>(rows() * kTurnSums));
  }

  bool wanted() const { return !own_.empty(); }
  /// Those of the rows from `row` on, or null.
  float* at(int64_t b, int64_t head, int64_t row) {
    return own_.empty() ? nullptr
                        : own_.data() + ((b * s_.heads + head) * s_.queries + row) * kTurnSums;
  }
  /// A part of the row's keys that is computed apart, which gives its sums to this object.
  template <class Few>
  Few few(Few problem) {
    if (own_.empty()) return problem;
    few_.assign(own_.size(), 0.0f);
    few_gradient_ = problem.queries == FewQueries::own ? problem.dtau : nullptr;
    problem.turns = few_.data();
    return problem;
  }

  /// Writes dtau, and that of the few keys where they have queries of their own.
  void write_gradients() const {
    for (int64_t r = 0; r < (own_.empty() ? 0 : rows()); ++r) {
      const float* const sums = own_.data() + r * kTurnSums;
      const float* const few = few_.empty() ? nullptr : few_.data() + r * kTurnSums;
      const float total = sums[3] + (few != nullptr ? few[3] : 0.0f) + of_sink(r);
      float delta = (sums[2] + (few != nullptr ? few[2] : 0.0f)) / (total > 0.0f ? total : 1.0f);
      if (p_.dlse != nullptr) delta -= p_.dlse[r];
      const float tau = p_.rule.tau[r / (s_.heads * s_.queries) * s_.queries + r % s_.queries];
      const auto gradient = [&](const float* of) { return (delta * of[1] - of[0]) / tau; };
      p_.dtau[r] = gradient(sums);
      if (few == nullptr) continue;
      if (few_gradient_ != nullptr)
        few_gradient_[r] = gradient(few);
      else
        p_.dtau[r] += gradient(few);
    }
  }

 private:
  // The weight of a row's sink.
  float of_sink(int64_t r) const {
    if (p_.rule.sink_logit == nullptr) return 0.0f;
    return std::exp(p_.rule.sink_logit[r / s_.queries % s_.heads] - p_.lse[r]);
  }
  int64_t rows() const { return s_.batch * s_.heads * s_.queries; }

  const Problem& p_;
  const AttentionSizes& s_;
  std::vector<float> own_, few_;
  float* few_gradient_ = nullptr;
};

}  // namespace fovea::kernels
