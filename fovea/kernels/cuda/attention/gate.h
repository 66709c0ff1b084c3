// The soft gate of Focus of a call: whether the kernels know it, and its arguments of a launch
// (internal to kernels/cuda/attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/attention/band_mask.h"
#include "fovea/kernels/cuda/attention/operands.h"

namespace fovea::kernels::cuda {

/// Why no kernel computes the gate of these settings.
Reason why_not_gate(const ScoreParameters& rule);
/// Why not with this mask.
Reason why_not_gate(const PairGate& gate, const BandMask& mask);

/// A gate's packed factors, in scratch memory while this lives. Nothing without a gate.
class GateCall {
 public:
  /// Sets the gate of `problem`, for a unit with room for `chunks` of 8 columns.
  GateCall(const PairGate& gate, int chunks, Problem& problem, Stream stream);
  /// Gradients too, of a backward pass.
  void want_gradients(Problem& problem, float* d_query, float* d_key, Stream stream);
  /// After the backward kernel.
  static void finish(const Problem& problem, Stream stream);

 private:
  std::optional<Scratch> factors_, sums_;
};

}  // namespace fovea::kernels::cuda
