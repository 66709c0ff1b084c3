// Hard Focus on the GPU: from the contract's structs (kernels/common/focus.h) to launches (spec
// 11.4, U-9).
//
//   plan     entries (token, group), sorted by group: one launch, the host reads nothing
//   groups   attention inside every group; each token has one partial result a group
//   rest     near keys and sinks that share no group with the query, joined with the partial ones
//
// bfloat16, head sizes 64 and 128, forward and backward, memory linear in the tokens. Gradients are
// sums in no fixed order: their last bits may differ between runs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "fovea/kernels/common/focus.h"

namespace fovea::kernels::cuda {

/// Why no kernel of this build runs a forward pass with these sizes and settings, or its backward
/// pass, on this machine.
std::optional<std::string> why_not(const FocusForward<BFloat16>& p);
std::optional<std::string> why_not(const FocusBackward<BFloat16>& p);

void run(const FocusForward<BFloat16>& p);
void run(const FocusBackward<BFloat16>& p);

}  // namespace fovea::kernels::cuda
