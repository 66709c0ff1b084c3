// Performer's own path, and its decoding from a state (internal to attention/; spec 4.2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/attention/attention.h"
#include "fovea/attention/call.h"

namespace fovea {

/// The call's tokens behind those of `state_bgmw` (kernels::performer_state_width()), which they
/// join. The output is before stage 10.
AttentionResult sums_from_state(const AttentionCall& call, const at::Tensor& state_bgmw, Path path);

}  // namespace fovea
