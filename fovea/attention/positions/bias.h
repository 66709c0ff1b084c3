// Additive position biases: ALiBi (spec 6.4) and the T5 table (6.3), for the reference and in the
// form that kernels read (internal to attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "fovea/attention/specs/bias.h"

namespace fovea {

struct AttentionSpec;
struct AttentionTensors;
struct Places;

/// ALiBi slopes m_h of H heads (spec 6.4), for any H.
std::vector<double> alibi_slopes(int64_t heads);

/// T5 bucket of every distance i - j (spec 6.3); `distance` int64 of any shape.
at::Tensor t5_buckets(const at::Tensor& distance, int64_t buckets, int64_t max_distance,
                      bool causal);

/// Stage 5: the additive bias [b or 1, h, t, s] or undefined where there is none.
at::Tensor position_bias(const AttentionSpec& spec, const AttentionTensors& tensors,
                         const Places& places, at::ScalarType dtype);

/// The T5 table [buckets, h] by distance: [h, n], entry 0 is distance 0 (causal) or -max_distance.
/// Differentiable.
at::Tensor bias_by_distance(const AttentionSpec& spec, const at::Tensor& table);

/// The gradient of the table [buckets, h] from that of the bias by distance [h, n].
at::Tensor bias_table_gradient(const AttentionSpec& spec, const at::Tensor& dbias_hn);

}  // namespace fovea
