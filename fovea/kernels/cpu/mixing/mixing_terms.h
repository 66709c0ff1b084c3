// Terms that join the mixed logits of a row before its softmax: the gate of Focus (spec 11.2) and
// biases by distance (6.3, 6.4). A row at a time, kStepKeys keys; the gate is the same for all
// heads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing/mixing_heads.h"
#include "fovea/kernels/cpu/pointwise/attention_gate.h"

namespace fovea::kernels {
namespace {

/// The gate of one query on the keys of a step: gate_lanes(), neutral for local pairs.
struct GateStep {
  alignas(64) float value[kStepKeys], slope[kStepKeys];
};

/// The terms of a task, of one query on the keys [key, key + kStepKeys) at a time.
class RowTerms {
 public:
  explicit RowTerms(const PairTerms& terms)
      : t_(terms),
        multiplies_(terms.gate.form == PairGate::Form::sigmoid_logit),
        adds_(terms.gate.form == PairGate::Form::log_sigmoid) {}

  bool active() const { return t_.gate.active() || t_.biased; }
  /// Whether the terms act on logits; the gate may act on weights besides.
  bool change_logits() const { return multiplies_ || adds_ || t_.biased; }
  bool weigh() const { return multiplies_weights(t_.gate.form); }

  /// Goes to a query and a step. Keys before the first and behind the last have zeros for factors.
  template <int degree>
  FOVEA_INLINE void begin(int64_t row, int64_t key) {
    row_ = row;
    key_ = key;
    if (!t_.gate.active()) return;
    Float z[kStepVectors];
    for (int v = 0; v < kStepVectors; ++v) z[v] = broadcast(t_.gate.offset);
    const float* const query = t_.query_gate + row * t_.gate.pitch;
    for (int64_t c = 0; c < t_.gate.pitch; ++c) {
      const Float factor = broadcast(query[c]);
#pragma GCC unroll 8
      for (int v = 0; v < kStepVectors; ++v) z[v] = factor * load(keys(c, v)) + z[v];
    }
    for (int v = 0; v < kStepVectors; ++v) {
      Float value, slope;
      gate_lanes<degree>(t_.gate, z[v], value, slope);
      const Int near = local_lanes(t_.gate, query_position(), key_positions(v));
      value = near ? broadcast(neutral_gate(t_.gate)) : value;
      slope = near ? Float{} : slope;
      store(gate_.value + v * kLanes, value);
      store(gate_.slope + v * kLanes, slope);
    }
  }

  /// Logits of a head with the terms that act on them; x and y may be the same.
  FOVEA_INLINE void to_logits(const HeadRule& rule, const float* x, float* y) const {
    for (int v = 0; v < kStepVectors; ++v) {
      Float s = load(x + v * kLanes);
      if (multiplies_) s = s * load(gate_.value + v * kLanes);
      if (adds_) s = s + load(gate_.value + v * kLanes);
      if (t_.biased) s = biased(rule, s, distance(v));
      store(y + v * kLanes, s);
    }
  }
  /// The same for the rows of all heads; `rule_of` gives the rule of a head.
  template <class RuleOf>
  FOVEA_INLINE void to_logits(HeadStep<const float> x, int64_t heads, const RuleOf& rule_of,
                              HeadStep<float> y) const {
    for (int64_t h = 0; h < heads; ++h) to_logits(rule_of(h), x.of(h), y.of(h));
  }

  /// The factor of vector v of the weights, where the gate acts on weights.
  FOVEA_INLINE Float factor(int v) const { return load(gate_.value + v * kLanes); }

  /// From the gradient of the logits that the softmax has read to that of `logits`, which the terms
  /// have changed, and to z: adds to `dz` [kStepKeys].
  FOVEA_INLINE void add_gate_gradient(const float* logits, float* ds, float* dz) const {
    for (int v = 0; v < kStepVectors; ++v) {
      const Float value = load(gate_.value + v * kLanes), slope = load(gate_.slope + v * kLanes);
      const Float d = load(ds + v * kLanes);
      Float of_z = d * slope;
      if (multiplies_) {
        of_z = of_z * load(logits + v * kLanes);
        store(ds + v * kLanes, d * value);
      } else if (!adds_) {
        of_z = of_z * inverse(value);  // the weight is e^logit times the value
      }
      store(dz + v * kLanes, load(dz + v * kLanes) + of_z);
    }
  }

  /// From the gradient of z, for pairs that are seen, to that of the factors: of the query's
  /// [pitch], and of the keys, as they lie in PairTerms.
  FOVEA_INLINE void add_factor_gradients(const float* dz, uint64_t seen, float* dquery,
                                         float* dkeys) const {
    const float* const query = t_.query_gate + row_ * t_.gate.pitch;
    for (int64_t c = 0; c < t_.gate.pitch; ++c) {
      const Float factor = broadcast(query[c]);
      Float total{};
      for (int v = 0; v < kStepVectors; ++v) {
        const Lanes lanes = lanes_of(seen, v);
        const Float d = load(dz + v * kLanes);
        float* const to = dkeys + (keys(c, v) - t_.key_gate);
        total = total + choose(lanes, d * load(keys(c, v)), Float{});
        store(to, load(to) + choose(lanes, d * factor, Float{}));
      }
      dquery[c] += sum(total);
    }
  }

  /// Adds to the gradient of a head's bias table.
  FOVEA_INLINE void add_bias_gradient(const HeadRule& rule, const float* ds, uint64_t seen,
                                      double* sums) const {
    for (int v = 0; v < kStepVectors; ++v) {
      const Lanes lanes = lanes_of(seen, v);
      kernels::add_bias_gradient(rule, distance(v), choose(lanes, load(ds + v * kLanes), Float{}),
                                 sums);
    }
  }

 private:
  FOVEA_INLINE const float* keys(int64_t c, int v) const {
    return t_.key_gate + c * t_.key_pitch + kTermMargin + key_ + v * kLanes;
  }
  FOVEA_INLINE Int query_position() const { return broadcast(t_.query_position[row_]); }
  FOVEA_INLINE Int key_positions(int v) const {
    return load(t_.key_position + kTermMargin + key_ + v * kLanes);
  }
  FOVEA_INLINE Int distance(int v) const { return query_position() - key_positions(v); }

  const PairTerms& t_;
  const bool multiplies_, adds_;
  int64_t row_ = 0, key_ = 0;
  GateStep gate_;
};

}  // namespace
}  // namespace fovea::kernels
