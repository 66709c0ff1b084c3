// The fused decoder on the CPU: one token of each sequence through all layers
// (kernels/common/decoder.h).
//
// Its time is that of reading the weights once. All threads walk through the layers together and
// meet seven times a layer. Each thread recomputes values as small as one residual row: that costs
// less than a barrier. Results have the same bits for any number of threads and for any neighbours.
// The instruction set is chosen_isa().
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fovea/kernels/common/decoder.h"

namespace fovea::kernels {

/// UnsupportedError for head sizes without an attention kernel, ShapeError for impossible sizes.
template <class T>
std::unique_ptr<Decoder<T>> make_decoder(DecoderModel model);

}  // namespace fovea::kernels
