// Maps, statistics, groups and outputs of layers on one text, by observers of the walk.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <numeric>

#include "fovea/base/error.h"
#include "fovea/nn/transformer_impl.h"
#include "fovea/nn/walk.h"

namespace fovea {
namespace {

std::vector<int64_t> first_integers(int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Weights of the first text of the batch [h, t, t], by recomputation.
at::Tensor map_of(const LayerStep& step, const AttentionContext& context) {
  return attention_rows(step.spec, step.heads.q_bhtd, step.heads.k_bgtd, step.tensors, context,
                        first_integers(step.spec.output_heads()),
                        first_integers(step.heads.q_bhtd.size(2)))[0];
}

class Maps final : public LayerObserver {
 public:
  void before_attention(const LayerStep& step, const PassContext& /*pass*/,
                        AttentionContext& context) override {
    maps.push_back(map_of(step, context));
  }
  std::vector<at::Tensor> maps;
};

class Views final : public LayerObserver {
 public:
  void before_attention(const LayerStep& step, const PassContext& /*pass*/,
                        AttentionContext& context) override {
    views.push_back({.spec = step.spec,
                     .weights_htt = map_of(step, context),
                     .stats = attention_stats(step.spec, step.heads.q_bhtd, step.heads.k_bgtd,
                                              step.tensors, context),
                     .groups = step.groups,
                     .temperature = step.temperature().value()});
  }
  std::vector<LayerView> views;
};

class Output final : public LayerObserver {
 public:
  void after_attention(const LayerStep& /*step*/, const PassContext& /*pass*/,
                       const AttentionContext& /*context*/,
                       const AttentionResult& result) override {
    out_btf = result.out_bhte.transpose(1, 2).flatten(2);
  }
  at::Tensor out_btf;
};

}  // namespace

std::vector<at::Tensor> Transformer::attention_maps(const ModelInput& input) const {
  const at::NoGradGuard no_grad;
  impl_->check(input);
  Maps maps;
  LayerObserver* const observers[] = {&maps};
  impl_->walk(input.tokens_bt, impl_->make_pass(input), observers);
  return std::move(maps.maps);
}

std::vector<LayerView> Transformer::look(const ModelInput& input) const {
  const at::NoGradGuard no_grad;
  impl_->check(input);
  require<ShapeError>(input.tokens_bt.size(0) == 1, "model", "look() takes one text; got {} rows",
                      input.tokens_bt.size(0));
  Views views;
  LayerObserver* const observers[] = {&views};
  impl_->walk(input.tokens_bt, impl_->make_pass(input), observers);
  return std::move(views.views);
}

at::Tensor Transformer::head_outputs(const ModelInput& input, int64_t layer) const {
  const at::NoGradGuard no_grad;
  impl_->check(input);
  require<ConfigError>(layer >= 0 && layer < config().layers, "model",
                       "expected a layer below {}; got {}", config().layers, layer);
  const PassContext pass = impl_->make_pass(input);
  Output output;
  LayerObserver* const observers[] = {&output};
  Impl::Stream stream{impl_->embed(input.tokens_bt, pass.positions, pass.last_position),
                      at::Tensor()};
  for (int64_t i = 0; i <= layer; ++i)
    stream = impl_->run_layer(i, stream, pass, i == layer ? Observers(observers) : Observers());
  return output.out_btf;
}

}  // namespace fovea
