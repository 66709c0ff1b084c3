// Folding constants into the weights: temperatures (spec 10.1, F-5), factors of norms (M-8).
//
// softmax(q k / (t sqrt(d))) is standard attention with W_q, or with QK-norm the gain of q, times
// 1/t. A norm whose output has a factor is a norm whose weight and bias have it. The folded model
// needs nothing of ours and runs anywhere.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/nn/transformer.h"

namespace fovea {

/// A copy of the model on the CPU with every layer's temperature 1 and without norm_depth_scale.
/// UnsupportedError for a learned temperature, which depends on the text, and for what no weight
/// holds.
Transformer fold_constants(const Transformer& model);

}  // namespace fovea
