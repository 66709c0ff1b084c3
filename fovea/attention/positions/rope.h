// Rotary positions, half-split inside (spec 6.1).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "fovea/attention/positions/rope_scaling.h"
#include "fovea/config/fields.h"

namespace fovea {

/// Which components of a head turn together: (t, t + d_r/2) or (2t, 2t + 1).
enum class RopeLayout { half_split, interleaved };
std::span<const std::string_view> enum_names(RopeLayout);

struct RopeSpec {
  double theta = 10000.0;
  int64_t rotary_dim = 0;                      ///< d_r; 0 = whole head; must be even
  RopeLayout layout = RopeLayout::half_split;  ///< of the rows of W_q and W_k
  RopeScaling scaling;

  void describe(FieldVisitor& v);
  void check(int64_t head_dim) const;
  bool operator==(const RopeSpec&) const = default;
};

/// cos and sin tables [positions, d_r / 2], computed in float64, stored as float32 (or float64 on
/// request). A dynamic scaling rule takes `positions` for the length of the text.
struct RopeTable {
  at::Tensor cos_pf, sin_pf;
};
RopeTable make_rope_table(const RopeSpec& spec, int64_t head_dim, int64_t positions,
                          at::Device device = at::kCPU, at::ScalarType dtype = at::kFloat);

/// Rotates x [b, n, t, d] by the positions [t] or [b, t] (int64). Pairs (c, c + d_r/2); components
/// from d_r on pass through. Differentiable; any floating dtype (float64 tables for float64 input
/// are made by the caller).
at::Tensor apply_rope(const at::Tensor& x_bntd, const RopeTable& table,
                      const at::Tensor& positions);

/// Row permutation of W_q / W_k per head between layouts (spec 6.1): interleaved -> half-split and
/// back. weight [n*d, in] or [n*d].
at::Tensor convert_rope_layout(const at::Tensor& weight, int64_t head_dim, int64_t rotary_dim,
                               RopeLayout from, RopeLayout to);

/// The components of heads x [b, n, t, d] from interleaved to half-split order. Logits do not
/// change where queries and keys are both reordered.
at::Tensor heads_to_half_split(const at::Tensor& x_bntd, int64_t rotary_dim);

}  // namespace fovea
