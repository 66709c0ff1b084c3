// Attention in parts: calls of the kernels over disjoint sets of keys, joined by their lse (spec
// 0.1; internal to attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/paths/path.h"
#include "fovea/attention/places.h"

namespace fovea {

// The mechanisms that attend in parts, of which a call has one (parts_path()).
AttentionPath longformer_path();
AttentionPath streaming_path();

/// A call over some of the keys, in the terms of the mask alone: spec without stage 10 and sink
/// logit, lse wanted, plans of its own.
AttentionCall part_of(const AttentionCall& call, const MaskRule& mask);

/// The part by the decoding kernels or the pointwise ones; float32 output.
AttentionResult run_part(const AttentionCall& part);

/// Softmax over both sets of keys. Rows that see nothing: output 0, lse -inf. Differentiable.
AttentionResult merged(const AttentionResult& a, const AttentionResult& b);

}  // namespace fovea
