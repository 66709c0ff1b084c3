// Next tokens of texts from logits in a GPU's memory (kernels/common/token_draws.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "fovea/kernels/common/token_draws.h"

namespace fovea::kernels::cuda {

std::optional<std::string> why_not(const TokenDraws& draws);
void run(const TokenDraws& draws);

}  // namespace fovea::kernels::cuda
