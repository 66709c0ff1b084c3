// Pointwise attention on the GPU: from the contract's structs (kernels/common/contract.h) to
// launches.
//
// bfloat16, head sizes 64 and 128, forward and backward, memory linear in the tokens. Settings:
// constant or learned temperature, soft-cap, ALiBi, sink logit; masks of band_mask.h. Gradients of
// queries are sums in no fixed order: their last bits may differ between runs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fovea/kernels/common/contract.h"

namespace fovea::kernels::cuda {

/// Why no kernel of this build runs a forward pass with these sizes and settings, or its backward
/// pass, on this machine.
std::optional<std::string> why_not(const AttentionForward<BFloat16>& p);
std::optional<std::string> why_not(const AttentionBackward<BFloat16>& p);

void run(const AttentionForward<BFloat16>& p);
void run(const AttentionBackward<BFloat16>& p);

/// The instructions that this machine's kernels use; empty where it runs none of this build.
std::string_view attention_isa();

}  // namespace fovea::kernels::cuda
