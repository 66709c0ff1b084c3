// Longformer's settings applied to a call: allowed pairs, global rows, rows that the cache keeps,
// and the equal mask rule where there is one (internal to attention/; spec 4.1).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/spec.h"

namespace fovea {

int64_t dilation_of(const LongformerSpec& spec, int64_t head);
int64_t largest_dilation(const LongformerSpec& spec);
/// Whether all heads have one dilation.
bool one_dilation(const LongformerSpec& spec);

bool is_global(const LongformerSpec& spec, int64_t position);
/// How many first positions are global, if no other position is.
std::optional<int64_t> only_first_globals(const LongformerSpec& spec);

/// The mask rule that allows the same pairs: without dilation, without own projections, globals
/// first. Then a global query sees nothing but globals before it.
std::optional<MaskRule> mask_rule_of(const LongformerSpec& spec);

/// Whether tokens at int64 positions [b or 1, n] are global, bool of that shape.
at::Tensor global_tokens(const LongformerSpec& spec, const at::Tensor& positions);

/// Rows that a cache keeps.
KeptKeys kept_keys(const LongformerSpec& spec);

}  // namespace fovea
