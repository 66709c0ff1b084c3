// The decoder of a GPU (kernels/common/decoder.h): one token of each sequence through all layers,
// as a graph of kernels that is recorded once.
//
// In bfloat16. Five kernels a layer: norm and heads, attention, its output, norm and gate, the
// feed-forward's output.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fovea/kernels/common/decoder.h"

namespace fovea::kernels::cuda {

/// Reason against a model, or nothing.
std::optional<std::string> why_not_decoder(const DecoderModel& model);
/// UnsupportedError where why_not_decoder() has a reason.
std::unique_ptr<Decoder<BFloat16>> make_decoder(DecoderModel model);

}  // namespace fovea::kernels::cuda
