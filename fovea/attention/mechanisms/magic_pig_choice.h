// MagicPIG's sampling of keys: signed random projections, and the chance of two collisions (spec
// 4.5; internal to attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fovea/attention/mechanisms/selector.h"
#include "fovea/attention/specs/magic_pig.h"

namespace fovea {

/// u + this is what a sampled key is divided by.
inline constexpr double kSampledFloor = 1e-4;

/// Gaussian directions [tables * bits, d] float64 drawn from `seed`; bit n of table l is row
/// l * bits + n. The same for all heads and layers.
at::Tensor hash_directions(const MagicPigSpec& spec, int64_t head_dim);

/// -ln(u + 1e-4), u the chance that a key at this cosine collides in two tables or more.
at::Tensor sampling_log_weights(const MagicPigSpec& spec, const at::Tensor& cosines);
/// The same of one key at this angle.
double sampling_log_weight(const MagicPigSpec& spec, double angle);
/// The same as a curve that kernels read: HashRule::log_weights.
std::vector<float> sampling_weight_curve(const MagicPigSpec& spec);

/// Products of hash_directions() in float32 with float32 keys, [b, g, tables * bits, pitch]; pitch:
/// keys, filled up with zeros to whole panels of kernels::kHashPanel.
at::Tensor key_side_products(const at::Tensor& directions, const at::Tensor& k_bgsd);

/// Which keys two hashes or more of a query agree on, for float32 rows whose keys have centres of
/// their own: bits of int32 [b, g, n, t, pitch / 32], 0 for keys at ends_bt (int64) and behind.
at::Tensor collision_words(const MagicPigSpec& spec, const at::Tensor& directions,
                           const at::Tensor& q_bgntd, const at::Tensor& key_products,
                           const at::Tensor& centre_bgtd, const at::Tensor& ends_bt);

Selection magic_pig_selection(const SelectorRows& rows);

}  // namespace fovea
