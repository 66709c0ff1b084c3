// Rewrites Longformer and StreamingLLM as a mask rule where both mean the same, so that all
// kernels, decoders and caches of a mask run them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/attention/call.h"

namespace fovea {

/// The same attention. Longformer without dilation, with first positions as globals and without
/// projections is window + 1 keys and `globals` sinks; StreamingLLM without start keys is a window.
AttentionSpec in_mask_terms(AttentionSpec spec);

/// The call with that spec, without the tensors that it does not read.
AttentionCall in_mask_terms(AttentionCall call);

}  // namespace fovea
