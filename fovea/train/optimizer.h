// AdamW with decoupled weight decay over the groups of a parameter registry.
//
//   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
//   p = p (1 - lr wd) - lr (m / (1 - b1^k)) / (sqrt(v / (1 - b2^k)) + eps)
//
// Several ranks share the moments (ZeRO-1, Rajbhandari et al. 2020): all trainable numbers, laid
// end to end, are cut into one part a rank; each rank updates its part and sends it to the others.
// Parameters of sharded layers are cut by these, and nothing is sent. Files have whole moments, so
// any number of ranks reads them.
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
#include "fovea/train/flat_parts.h"
#include "fovea/train/recipe.h"
#include "fovea/train/saved_parts.h"
#include "fovea/train/sharded_layers.h"

namespace fovea {

class AdamW {
 public:
  /// A smaller model keeps all moments on every rank: the exchange would cost more than it saves.
  static constexpr int64_t kFewestToShard = 1 << 20;

  /// Trainable parameters only. The registry, `ranks` and `layers` must outlive the optimizer.
  AdamW(ParameterRegistry& parameters, const OptimizerConfig& config, Communicator& ranks = alone(),
        int64_t fewest_to_shard = kFewestToShard, ShardedLayers* layers = nullptr);

  /// The global norm of all gradients, float32 on the parameters' device. With sharded layers all
  /// ranks must call it.
  at::Tensor gradient_norm() const;
  /// Scales the gradients, whose norm is `norm`, to `clip` where that is smaller.
  void clip_gradients(double norm);
  /// Both; waits for the norm and returns it.
  double clip_gradients();
  /// One update with `learning_rate`, for which all ranks have the same gradients. Parameters
  /// without a gradient are left alone. Gradients are kept.
  void step(double learning_rate);
  /// Drops all gradients, so that they take no memory between steps.
  void clear_gradients();

  /// Takes over the moments and the step count of an optimizer of a model with the same parameters,
  /// which is then as empty as moved from.
  void take_state(AdamW& other);
  int64_t steps_done() const { return steps_; }

  /// "exp_avg.<name>", "exp_avg_sq.<name>", "step". Moments that are cut have shapes alone, and are
  /// added to `saved`; without it they are whole on every rank, which all must call it.
  TensorMap state(SavedParts* saved = nullptr) const;
  /// CheckpointError for missing names and wrong shapes.
  void load_state(const SafetensorsFile& file);

 private:
  struct Entry {
    Parameter* parameter = nullptr;
    int64_t offset = 0;              // in its cut
    at::Tensor exp_avg, exp_avg_sq;  // of this rank's part
  };
  struct Group {
    double weight_decay_scale = 1.0, learning_rate_scale = 1.0;
    std::vector<Entry> entries;
  };
  bool in_layers(const Entry& entry) const;
  const FlatParts& cut(const Entry& entry) const;
  at::Tensor own_part(const Entry& entry, const at::Tensor& whole) const;
  at::Tensor own_value(const Entry& entry) const;
  at::Tensor own_gradient(const Entry& entry) const;  // undefined where there is none
  /// Gradients of parameters that are whole, or of those in sharded layers.
  std::vector<at::Tensor> gradients(bool of_layers) const;
  at::Tensor saved_moment(const std::string& name, const Entry& entry, const at::Tensor& own,
                          SavedParts* saved) const;
  void send_values() const;

  OptimizerConfig config_;
  Communicator& ranks_;
  ShardedLayers* layers_ = nullptr;
  FlatParts parts_;  // of trainable numbers outside of sharded layers
  bool sharded_ = false;
  std::vector<Group> groups_;
  at::Tensor step_;  // float32 scalar, as torch's fused kernel wants it
  int64_t steps_ = 0;
};

}  // namespace fovea
