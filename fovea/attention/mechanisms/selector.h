// Selectors: mechanisms whose queries choose the keys that they read (SparQ, spec 4.4; MagicPIG,
// spec 4.5).
//
// For every query row and head a selector says which keys are read, with log-weights, and the share
// alpha of the result that they make up; the mean of all allowed values makes up the rest:
//   out_i = alpha_i sum_j P_ij v_j + (1 - alpha_i) mean_j v_j,   P over the chosen keys alone
// Each row chooses by itself among the keys that it may see, so later tokens change nothing. The
// choice is constant for the gradient; log-weights and alpha have one.
//
// Shapes: b batch, h query heads, g key heads, t queries, s keys, d key width.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace fovea {

struct AttentionSpec;
struct Places;
struct StageRows;

/// What a selector says of some rows.
struct Selection {
  at::Tensor chosen_bhts;       ///< bool, among the allowed keys; undefined: no selector
  at::Tensor log_weights_bhts;  ///< added to the logits; undefined: 0
  at::Tensor alpha_bht;         ///< undefined: 1
};

/// Rows of queries, their keys, and what they may see.
struct SelectorRows {
  const AttentionSpec& spec;
  const at::Tensor &q_bhtd, &k_bgsd, &tau_bt;  ///< tau: learned temperatures, or undefined
  const at::Tensor& allowed_b1ts;              ///< [b or 1, 1, t, s]
  const Places& places;
  /// Tokens of the prompt, int64 [b], which a row after it does not count as generated. Undefined:
  /// of every row, what comes before it.
  const at::Tensor& prompts_b;
};

/// The choice of the layer's selector (Mechanism::select); nothing where it has none.
Selection select_keys(const StageRows& rows);

/// Weights of the chosen keys, with the rest of a row's weight spread over all allowed ones.
at::Tensor reallocated(const at::Tensor& weights_bhts, const at::Tensor& alpha_bht,
                       const at::Tensor& allowed_b1ts);

/// True for the `count` largest of the last axis; ties go to the lower index. No gradient.
at::Tensor largest(const at::Tensor& x, int64_t count);

}  // namespace fovea
