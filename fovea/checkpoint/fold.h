// Folding a constant temperature into the weights (spec 10.1, F-5).
//
// softmax(q k / (t sqrt(d))) is standard attention with W_q, or with QK-norm the gain of q, times
// 1/t. The folded model needs nothing of ours and runs anywhere.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/nn/transformer.h"

namespace fovea {

/// A copy of the model on the CPU with every layer's temperature 1. UnsupportedError for a learned
/// temperature: it depends on the text.
Transformer fold_temperature(const Transformer& model);

}  // namespace fovea
