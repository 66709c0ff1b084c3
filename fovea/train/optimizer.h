// AdamW with decoupled weight decay over the groups of a parameter registry.
//
//   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
//   p = p (1 - lr wd) - lr (m / (1 - b1^k)) / (sqrt(v / (1 - b2^k)) + eps)
//
// Loshchilov and Hutter, ICLR 2019. Parameters whose registry entry says `decay = false` (norms,
// biases, temperatures) have wd = 0.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/checkpoint/safetensors.h"
#include "fovea/nn/parameters.h"
#include "fovea/runtime/communicator.h"
#include "fovea/train/recipe.h"

namespace fovea {

class AdamW {
 public:
  /// Trainable parameters only. The registry must outlive the optimizer.
  AdamW(ParameterRegistry& parameters, const OptimizerConfig& config);

  /// Gradients become their sums over the ranks, which all have the same ones.
  void sum_gradients(Communicator& ranks);
  /// The global norm of all gradients, float32 on the parameters' device.
  at::Tensor gradient_norm() const;
  /// Scales the gradients, whose norm is `norm`, to `clip` where that is smaller.
  void clip_gradients(double norm);
  /// Both; waits for the norm and returns it.
  double clip_gradients();
  /// One update with `learning_rate`; parameters without a gradient are left alone. Gradients are
  /// kept.
  void step(double learning_rate);
  /// Drops all gradients, so that they take no memory between steps.
  void clear_gradients();

  /// Takes over the moments and the step count of an optimizer of a model with the same parameters,
  /// which is then as empty as moved from.
  void take_state(AdamW& other);
  int64_t steps_done() const { return steps_; }

  /// "exp_avg.<name>", "exp_avg_sq.<name>", "step".
  TensorMap state() const;
  /// CheckpointError for missing names and wrong shapes.
  void load_state(const SafetensorsFile& file);

 private:
  struct Group {
    double weight_decay_scale = 1.0, learning_rate_scale = 1.0;
    std::vector<Parameter*> parameters;
    std::vector<at::Tensor> exp_avg, exp_avg_sq;
  };
  std::vector<at::Tensor> gradients() const;  // those that there are

  OptimizerConfig config_;
  std::vector<Group> groups_;
  at::Tensor step_;  // float32 scalar, as torch's fused kernel wants it
  int64_t steps_ = 0;
};

}  // namespace fovea
