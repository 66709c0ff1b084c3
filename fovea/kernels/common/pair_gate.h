// PairGate: the soft gate of Focus on the pairs of one attention call, in the form of the attention
// kernels (spec 11.2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

namespace fovea::kernels {

/// With z_ij = sum_k query_ik key_jk + offset, a pair that is not local gets
///   weight          P_ij times z_ij (not negative): the gates `log` and `identity`
///   capped_weight   P_ij times the smaller of z_ij and 1 + offset, with the slope 1 everywhere:
///                   `straight_through`, whose z_ij counts shared groups
///   sigmoid_weight  P_ij times sigma(z_ij): `logsig`
///   sigmoid_logit   the capped logit times sigma(z_ij), before biases: `mul`
///   log_sigmoid     the logit plus ln sigma(z_ij): sigmoid_weight where sigma leaves float32's
///   range
/// before the softmax is normalised, so that lse counts it. Local pairs stay as they are: i - j <
/// window in positions, or a key at a position below `sinks` (U-10, U-23). A z_ij that is no number
/// makes row i none, with every form.
struct PairGate {
  enum class Form { none, weight, capped_weight, sigmoid_weight, sigmoid_logit, log_sigmoid };

  Form form = Form::none;
  float offset = 0.0f;
  /// No z_ij is less: sigmoid_weight becomes log_sigmoid where this allows too small a weight.
  float least = -std::numeric_limits<float>::infinity();
  int64_t window = 0, sinks = 0;
  int64_t columns = 0;                     ///< of a token's factors, 1 to kMostGateColumns
  const float* query = nullptr;            ///< [batch][queries][columns]
  const float* key = nullptr;              ///< [batch][keys][columns]
  int64_t query_batch = 0, key_batch = 0;  ///< floats from one batch row to the next
};

/// Whether the gate multiplies weights, which have left the softmax's exponent.
constexpr bool multiplies_weights(PairGate::Form form) {
  return form == PairGate::Form::weight || form == PairGate::Form::capped_weight ||
         form == PairGate::Form::sigmoid_weight;
}

/// 64 groups and one column for a threshold.
constexpr int64_t kMostGateColumns = 65;

}  // namespace fovea::kernels
