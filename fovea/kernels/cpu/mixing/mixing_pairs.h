// Numbers of every token that mixing kernels read beside q, k and v: factors of the gate and
// memberships, in the order of the kernels (internal to kernels/cpu). Linear in the tokens.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "fovea/kernels/cpu/mixing/mixing_table.h"
#include "fovea/kernels/cpu/pointwise/attention_gate_pack.h"

namespace fovea::kernels {

/// The numbers of all rows of the batch; set() gives those of one to a task.
class PairOperands {
 public:
  /// A forward or backward problem.
  template <class Problem>
  explicit PairOperands(const Problem& p)
      : sizes_(p.sizes),
        gate_(gate_rule(p.rule.gate)),
        biased_(p.rule.alibi != nullptr || p.rule.distance_bias != nullptr),
        members_(p.members),
        query_gate_(gate_, p.rule.gate.columns, p.rule.gate.query, p.rule.gate.query_batch,
                    p.sizes.batch, p.sizes.queries, p.sizes.queries) {
    key_pitch_ = kTermMargin + round_up(sizes_.keys, kStepKeys) + 2 * kStepKeys;
    if (active()) position_keys(p.visits);
    if (gate_.active()) turn_key_gates(p.rule.gate);
    if (!members_.active()) return;
    sets_.reserve(static_cast<size_t>(sizes_.batch));
    for (int64_t b = 0; b < sizes_.batch; ++b)
      sets_.emplace_back(members_, visits_of(p.visits, b), b);
  }

  const GateRule& gate() const { return gate_; }
  /// Floats of the gradient of one row's keys, as they lie in PairTerms.
  int64_t key_floats() const { return gate_.active() ? gate_.pitch * key_pitch_ : 0; }
  int64_t key_pitch() const { return key_pitch_; }

  /// Everything that says which pairs of row b are seen, and what joins their logits.
  template <class Task>
  void set(int64_t b, const Visits& visits, Task& task) const {
    task.rule = visits.rule;
    task.query_places = columns_of(visits.query);
    task.key_places = columns_of(visits.key);
    if (members_.active()) sets_[static_cast<size_t>(b)].set(members_, task);
    if (!active()) return;
    const size_t row = positions_.size() == 1 ? 0 : static_cast<size_t>(b);
    task.terms = {.gate = gate_,
                  .query_gate = query_gate_.at(b),
                  .key_gate = key_gate_.empty() ? nullptr : key_gate_.data() + b * key_floats(),
                  .key_pitch = key_pitch_,
                  .query_position = visits.query.position.data(),
                  .key_position = positions_[row].data(),
                  .biased = biased_};
  }

 private:
  // Memberships of the tokens of one row of the batch, as the visit rule compares them.
  struct Sets {
    Sets(const MemberMask& members, const Visits& visits, int64_t b)
        : key_low(visits.key.position.size()),
          key_high(key_low.size()),
          query_low(visits.query.position.size()),
          query_high(query_low.size()),
          open(visits.key.open.begin(), visits.key.open.end()) {
      split(members.key + b * members.key_batch, visits.keys, key_low, key_high);
      split(members.query + b * members.query_batch, visits.queries, query_low, query_high);
      open.resize(key_low.size(), 0);
      for (int64_t j = 0; j < visits.keys; ++j)
        if (visits.key.position[j] < members.sinks) open[j] |= TokenColumns::kOpenToAll;
    }

    static void split(const int64_t* bits, int64_t count, std::vector<int32_t>& low,
                      std::vector<int32_t>& high) {
      for (int64_t n = 0; n < count; ++n) {
        low[n] = static_cast<int32_t>(bits[n]);
        high[n] = static_cast<int32_t>(bits[n] >> 32);
      }
    }

    template <class Task>
    void set(const MemberMask& members, Task& task) const {
      task.rule.members = MemberRule::meet_or_near;
      task.rule.near = static_cast<int32_t>(std::min<int64_t>(members.window, 1 << 30));
      task.rule.opens |= members.sinks > 0;
      task.key_places.open = open.data();
      task.key_places.members_low = key_low.data();
      task.key_places.members_high = key_high.data();
      task.query_places.members_low = query_low.data();
      task.query_places.members_high = query_high.data();
    }

    std::vector<int32_t> key_low, key_high, query_low, query_high, open;
  };

  bool active() const { return gate_.active() || biased_; }

  void position_keys(std::span<const Visits> visits) {
    positions_.reserve(visits.size());
    for (const Visits& v : visits) {
      std::vector<int32_t>& to = positions_.emplace_back(static_cast<size_t>(key_pitch_), 0);
      std::copy_n(v.key.position.begin(), v.keys, to.begin() + kTermMargin);
    }
  }

  // From rows of factors to a row for each column.
  void turn_key_gates(const PairGate& gate) {
    key_gate_.assign(static_cast<size_t>(sizes_.batch * key_floats()), 0.0f);
    for (int64_t b = 0; b < sizes_.batch; ++b) {
      float* const to = key_gate_.data() + b * key_floats() + kTermMargin;
      const float* row = gate.key + b * gate.key_batch;
      for (int64_t j = 0; j < sizes_.keys; ++j, row += gate.columns)
        for (int64_t c = 0; c < gate.columns; ++c) to[c * key_pitch_ + j] = row[c];
    }
  }

  const AttentionSizes& sizes_;
  const GateRule gate_;
  const bool biased_;
  const MemberMask members_;
  const GateRows query_gate_;
  int64_t key_pitch_ = 0;
  std::vector<std::vector<int32_t>> positions_;  ///< of keys: one for all rows, or one each
  std::vector<float> key_gate_;                  ///< [batch][pitch][key pitch]
  std::vector<Sets> sets_;                       ///< [batch]
};

}  // namespace fovea::kernels
