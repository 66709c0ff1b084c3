// The mixing kernels of the CUDA backend (contract: kernels/common/mixing.h): key-query
// convolutions and head mixes of one causal text a row, or of packed documents.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fovea/kernels/common/mixing.h"

namespace fovea::kernels::cuda {

/// Why no kernel of this build runs a forward pass with these sizes and settings, or its backward
/// pass, on this machine.
std::optional<std::string> why_not(const MixingForward<BFloat16>& p);
std::optional<std::string> why_not(const MixingBackward<BFloat16>& p);

void run(const MixingForward<BFloat16>& p);
void run(const MixingBackward<BFloat16>& p);

/// The instructions that this machine's kernels use; empty where it runs none of this build.
std::string_view mixing_isa();

}  // namespace fovea::kernels::cuda
