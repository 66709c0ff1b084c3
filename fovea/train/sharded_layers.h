// ShardedLayers: the weights and gradients of layers, cut into one part a rank (ZeRO-3, Rajbhandari
// et al. 2020; FSDP, Zhao et al. 2023).
//
// The weights of a layer are laid end to end, and each rank keeps its part. Before the walk reads a
// layer the parts are gathered, while the layer before it computes; afterwards they go. The
// gradients of a layer are summed while the next one's are computed; each rank keeps the sum of its
// part. A rank holds the weights and the gradients of two layers at most.
//
// Embedding, head, last norm and the parameters that mechanisms add stay whole on every rank. The
// model's other parameters have no numbers outside of passes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "fovea/nn/layer_gather.h"
#include "fovea/nn/transformer.h"
#include "fovea/runtime/communicator.h"
#include "fovea/train/flat_parts.h"
#include "fovea/train/saved_parts.h"

namespace fovea {

class ShardedLayers final : public LayerGather {
 public:
  /// Takes the memory of the layers' weights away; `model` and `ranks`, at least two, must outlive
  /// it. One of draw(), set() for each parameter, and take() gives them numbers. UnsupportedError
  /// for models whose layers cannot be cut.
  ShardedLayers(Transformer& model, Communicator& ranks);
  ~ShardedLayers() override;

  /// Whether the weights of a parameter are cut.
  bool has(const Parameter& parameter) const { return places_.contains(&parameter); }
  /// Draws the first numbers of all parameters of the model, cut or not.
  void draw();
  /// Keeps this rank's part of `numbers`.
  void set(const Parameter& parameter, const at::Tensor& numbers);
  /// The numbers of a model with the same layers, which is as empty as moved from afterwards.
  void take(ShardedLayers& before);

  void gather(int64_t layer, int64_t next) override;
  void reduce(int64_t layer) override;
  /// Returns when all gradients are summed; whole weights go. Until then nobody else may use the
  /// communicator after gather(). Rethrows its errors.
  void finish();
  /// Seconds of waiting for exchanges since the last call.
  double take_waited() { return std::exchange(waited_, 0.0); }

  /// This rank's part of a parameter that is cut.
  at::Tensor own_value(const Parameter& parameter) const;
  /// The same part of its gradient, summed over the ranks; undefined before the first reduce().
  at::Tensor own_gradient(const Parameter& parameter) const;
  void clear_gradients();
  /// The cut of a parameter, and where it begins.
  const FlatParts& parts(const Parameter& parameter) const;
  int64_t offset(const Parameter& parameter) const;
  /// Adds the weights under their names.
  void add_to(SavedParts& saved) const;

 private:
  struct Layer {
    std::vector<Parameter*> parameters;
    std::vector<int64_t> offsets;
    FlatParts parts;
    at::Tensor own, own_gradient;  // [parts.length()]
    bool has_gradient = false;
    at::Tensor whole_rn;   // [ranks, parts.length()] while it is here, or comes
    int64_t arrives = 0;   // with that exchange
    bool reading = false;  // its parameters are views of whole_rn
  };
  struct Place {
    size_t layer = 0;
    int64_t offset = 0;
  };
  class Exchanges;

  void wait(int64_t exchanges);
  void come(Layer& layer);
  void go(Layer& layer);
  at::Tensor whole_like(const Layer& layer);
  at::Tensor own_part(const at::Tensor& numbers, const Parameter& parameter) const;
  at::Tensor own_numbers(const Parameter& parameter, const at::Tensor& part) const;

  Transformer& model_;
  Communicator& ranks_;
  at::TensorOptions numbers_;  // of weights and gradients
  std::vector<Layer> layers_;
  std::map<const Parameter*, Place> places_;
  // Large tensors are used again: malloc would lay them out anew in every pass, with gaps between.
  std::vector<at::Tensor> spare_rn_;
  at::Tensor summed_rn_;  // of last_sum_
  int64_t last_sum_ = 0;  // of the exchanges
  double waited_ = 0.0;
  std::unique_ptr<Exchanges> exchanges_;
};

}  // namespace fovea
