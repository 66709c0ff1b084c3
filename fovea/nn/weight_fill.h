// Weights for inference: matrices in the formats that the kernels read, side by side in memory.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>

#include "fovea/attention/cache/huge_pages.h"
#include "fovea/nn/matrix.h"
#include "fovea/nn/transformer.h"

namespace fovea {

/// How projections, embedding and head are held. All else is float32.
struct MatrixStorage {
  at::ScalarType plain = at::kFloat;            ///< of matrices that are not packed
  std::optional<kernels::WeightFormat> packed;  ///< every matrix is quantised to it
  bool as_stored = false;                       ///< what a file holds in blocks stays so

  /// A model that is held otherwise than in float32 serves inference alone.
  bool trainable() const { return plain == at::kFloat && !packed && !as_stored; }
};

/// Gives the parameters of a model their numbers. On a CPU the matrices lie one after the other on
/// huge pages, in order of registration, so that those of one product are neighbours. Holds no
/// copy.
class WeightFill {
 public:
  /// The format of a parameter's numbers where set() receives blocks.
  using Stored = std::function<std::optional<kernels::WeightFormat>(const Parameter&)>;

  /// No parameter is trainable afterwards where the storage is not. MemoryNeeded where the machine
  /// cannot hold the matrices; ShapeError for rows that cannot be packed; UnsupportedError for
  /// packed matrices on another device than the CPU.
  WeightFill(Transformer& model, const MatrixStorage& storage, const Stored& stored = {});

  /// `numbers` are the parameter's in any floating-point format, or in the blocks that `stored`
  /// told.
  void set(Parameter& parameter, const at::Tensor& numbers);

 private:
  MatrixStorage storage_;
  std::map<const Parameter*, at::Tensor> places_;  ///< of matrices on a CPU
};

/// Holds the matrices of a model in this way from now on; for inference. Those that `stored` holds
/// in blocks, under the same name and with the same numbers, stay in these.
void hold_matrices(Transformer& model, const MatrixStorage& storage,
                   const Transformer* stored = nullptr);

}  // namespace fovea
