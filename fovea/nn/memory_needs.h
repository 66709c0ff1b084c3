// Memory of a model beside its parameters, computed from its sizes alone.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/nn/model_config.h"

namespace fovea {

/// Tables of rotary or sinusoidal positions while they are made: bytes at their peak, in doubles
/// and float32. Learned positions are parameters.
double position_table_bytes(const ModelConfig& resolved, int64_t positions);

/// The widest block of one forward pass without gradients, in bytes: states, heads and feed-forward
/// of `tokens` tokens at `element` bytes each.
double pass_bytes(const ModelConfig& resolved, double tokens, double element);

}  // namespace fovea
