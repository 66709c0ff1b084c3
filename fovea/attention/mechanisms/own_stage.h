// An attention of your own: formulas that your program registers and recipes switch on.
//
// A formula acts in the stage that it names, as those of the library's mechanisms do
// (mechanism.h), on every path: the reference runs it in training, decoding, `compare` and
// `inspect`. See docs/adding-a-mechanism.md and examples/own_mechanism.
//
// Shape suffixes: b batch, h heads, t queries, s keys.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/attention/specs/own_stage.h"
#include "fovea/attention/stage_id.h"

namespace fovea {

struct AttentionSpec;
struct StageRows;  // stage_rows.h

/// The rows of a call that a formula of one's own sees, beside its operand.
struct OwnStageCall {
  const AttentionSpec& spec;  ///< spec.own.values are the recipe's numbers
  at::Tensor weight;          ///< the learned tensor, in the dtype of the logits; undefined without
  at::Tensor distance_bts;    ///< i - j in the document, int64 [b or 1, t, s]; negative = later key
  const StageRows& rows;      ///< places, allowed pairs, the call itself
};

/// The new operand, of the same shape: logits in stages 1 to 7, weights after them, differentiable,
/// float32 or float64 [b, h, t, s]. Row i may depend on row i alone (all heads and keys of it).
/// Calls bring any rows of a text, and any slice of the keys that holds all that the rows see.
using OwnFormula = std::function<at::Tensor(const at::Tensor& x_bhts, const OwnStageCall& call)>;

struct OwnStage {
  std::string name;  ///< of `model.attention.own.name`
  /// Its formula of stage 5, before the gate of Focus and biases; the mask follows.
  OwnFormula apply = {};
  /// Its formulas of other stages; all but `keys` can have one.
  std::vector<std::pair<StageId, OwnFormula>> formulas = {};
  /// Stage 6: which of the allowed pairs [b or 1, 1 or h, t, s] remain, bool.
  OwnFormula visible = {};
  /// Shape of the layer's learned tensor; empty = it learns nothing.
  std::function<std::vector<int64_t>(const AttentionSpec& spec)> weight_shape = {};
  double weight_start = 0.0;  ///< every element starts here; best where the stage is neutral
  /// ConfigError for values without a meaning; may be empty.
  std::function<void(const AttentionSpec& spec)> check = {};
};

/// Makes an attention known to this program; call it before the first model is made. ConfigError
/// for a name that is empty or taken, and where no formula is given or two for one stage. Safe from
/// several threads.
void register_own_stage(OwnStage stage);

/// The attention of that name; ConfigError that names those there are.
const OwnStage& own_stage(const std::string& name);

/// Shape of the learned tensor of `spec.own`; empty where there is none.
std::vector<int64_t> own_weight_shape(const AttentionSpec& spec);

}  // namespace fovea
