// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea::kernels {

/// Sums over a row's keys from which the gradient of its temperature follows. s is the scaled
/// product, g is P times the slope of the soft-cap:
///   g dP s,   g s,   P dP,   P   ->   dtau = -(sum g dP s - (D - dlse) sum g s) / tau
/// D = (sum P dP) / (sum P) over all keys of the row and its sink, whose dP is 0. In place of the
/// first sum, q.dq would have rounded dS. In place of D, dO.O would have the forward pass's
/// weights. Where the temperature is sharp, such differences do not cancel.
constexpr int64_t kTurnSums = 4;

}  // namespace fovea::kernels
