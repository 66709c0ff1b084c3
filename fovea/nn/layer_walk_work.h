// The state of a LayerWalk between two layers. Private to fovea/nn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fovea/nn/layer_walk.h"
#include "fovea/nn/transformer_impl.h"

namespace fovea {

/// Makes the view of each layer.
class LayerViews final : public LayerObserver {
 public:
  explicit LayerViews(LookOptions wanted) : wanted_(std::move(wanted)) {}

  void before_attention(const LayerStep& step, const PassContext& pass,
                        AttentionContext& context) override;
  void after_attention(const LayerStep& step, const PassContext& pass,
                       const AttentionContext& context, const AttentionResult& result) override;

  std::optional<LayerView> view;  // of the last layer

 private:
  LookOptions wanted_;
};

struct LayerWalk::Work {
  const Transformer::Impl& model;
  PassContext pass;
  Transformer::Impl::Stream stream;
  std::unique_ptr<LayerViews> views = nullptr;  // of look_layers()
  int64_t layer = 0;                            // the next one
  at::Tensor hidden = {};
};

}  // namespace fovea
