// Weights for inference: matrices in the number format of the computation, side by side in memory.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "fovea/attention/cache/huge_pages.h"
#include "fovea/nn/transformer.h"

namespace fovea {

/// Gives the parameters of a model their numbers: projections, embedding and head in one number
/// format, on a CPU one after the other on huge pages; all else in float32. Holds no copy.
class WeightFill {
 public:
  /// Where `matrices` is not float32 the model can no longer be trained. MemoryNeeded where the
  /// machine cannot hold the matrices.
  WeightFill(Transformer& model, at::ScalarType matrices);

  /// `numbers` may have any floating-point format; their shape is the parameter's.
  void set(Parameter& parameter, const at::Tensor& numbers);

 private:
  at::ScalarType matrices_;
  std::optional<HugePages> memory_;
};

}  // namespace fovea
