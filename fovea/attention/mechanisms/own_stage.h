// A stage of your own: a function on the logits that your program registers and recipes switch on.
//
// It acts in stage 5, after the head mix and before the gate of Focus, biases and the mask. The
// reference runs it everywhere: in training, decoding, `compare` and `inspect`. See
// docs/adding-a-mechanism.md and examples/own_mechanism.
//
// Shape suffixes: b batch, h heads, t queries, s keys.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/config/fields.h"

namespace fovea {

struct AttentionSpec;
struct Mechanism;

/// A stage that this program registered (own_stage.h), in stage 5 before gate and bias.
struct OwnStageSpec {
  std::string name;            ///< "" = none
  std::vector<double> values;  ///< numbers that it reads

  bool active() const { return !name.empty(); }
  void describe(FieldVisitor& v);
  bool operator==(const OwnStageSpec&) const = default;
};

const Mechanism& own_stage_mechanism();

/// Arguments of a stage of one's own beside the logits.
struct OwnStageCall {
  const AttentionSpec& spec;  ///< spec.own.values are the recipe's numbers
  at::Tensor weight;          ///< the learned tensor, in the dtype of the logits; undefined without
  at::Tensor distance_bts;    ///< i - j in the document, int64 [b or 1, t, s]; negative = later key
};

struct OwnStage {
  std::string name;  ///< of `model.attention.own.name`
  /// The new logits [b, h, t, s], differentiable, float32 or float64. Row i may depend on row i
  /// alone, on all its heads and keys. A call may bring any rows of a text, and any slice of the
  /// keys that holds every key that these rows see. Pairs that are not allowed are masked
  /// afterwards.
  std::function<at::Tensor(const at::Tensor& logits_bhts, const OwnStageCall& call)> apply;
  /// Shape of the layer's learned tensor; empty = it learns nothing.
  std::function<std::vector<int64_t>(const AttentionSpec& spec)> weight_shape;
  double weight_start = 0.0;  ///< every element starts here; best where the stage is neutral
  /// ConfigError for values without a meaning; may be empty.
  std::function<void(const AttentionSpec& spec)> check;
};

/// Makes a stage known to this program; call it before the first model is made. ConfigError for a
/// name that is empty or taken, and for a stage without `apply`. Safe from several threads.
void register_own_stage(OwnStage stage);

/// The stage of that name; ConfigError that names those there are.
const OwnStage& own_stage(const std::string& name);

/// Shape of the learned tensor of `spec.own`; empty where there is none.
std::vector<int64_t> own_weight_shape(const AttentionSpec& spec);

}  // namespace fovea
