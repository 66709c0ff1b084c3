// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea::kernels {

/// Sums over a row's keys from which the gradient of its temperature follows: with s the scaled
/// product, g = P times the slope of the soft-cap, and D = (sum P dP) / (sum P) over all keys of
/// the row (and its sink, whose dP is 0),
///   g dP s,   g s,   P dP,   P   ->   dtau = -(sum g dP s - (D - dlse) sum g s) / tau.
/// q.dq would have rounded dS, and dO.O the forward pass's weights: where the temperature is sharp,
/// these differences do not cancel. So the sum of P counts as well, which rounding takes off 1.
constexpr int64_t kTurnSums = 4;

}  // namespace fovea::kernels
