// Maps, statistics, groups and outputs of layers on one text, by observers of the walk.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "fovea/base/error.h"
#include "fovea/nn/layer_walk_work.h"
#include "fovea/nn/walk.h"

namespace fovea {
namespace {

std::vector<int64_t> or_first_integers(const std::vector<int64_t>& list, int64_t count) {
  if (!list.empty()) return list;
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Weights of the first text of the batch [heads, queries, s], by recomputation.
at::Tensor weights_of(const LayerStep& step, const AttentionContext& context,
                      const LookOptions& wanted) {
  return attention_rows(step.spec, step.heads.q_bhtd, step.heads.k_bgtd, step.tensors, context,
                        or_first_integers(wanted.heads, step.spec.output_heads()),
                        or_first_integers(wanted.queries, step.heads.q_bhtd.size(2)))[0];
}

class Maps final : public LayerObserver {
 public:
  void before_attention(const LayerStep& step, const PassContext& /*pass*/,
                        AttentionContext& context) override {
    maps.push_back(weights_of(step, context, {}));
  }
  std::vector<at::Tensor> maps;
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

void LayerViews::before_attention(const LayerStep& step, const PassContext& /*pass*/,
                                  AttentionContext& context) {
  view = LayerView{
      .spec = step.spec, .groups = step.groups, .temperature = step.temperature().value()};
  if (wanted_.layers.empty() ||
      std::ranges::find(wanted_.layers, step.index) != wanted_.layers.end())
    view->weights_hqs = weights_of(step, context, wanted_);
  context.want_stats = true;
}

void LayerViews::after_attention(const LayerStep& /*step*/, const PassContext& /*pass*/,
                                 const AttentionContext& /*context*/,
                                 const AttentionResult& result) {
  view->stats = result.stats;
}

std::vector<at::Tensor> Transformer::attention_maps(const ModelInput& input) const {
  const at::NoGradGuard no_grad;
  impl_->check(input);
  Maps maps;
  LayerObserver* const observers[] = {&maps};
  impl_->walk(input.tokens_bt, impl_->make_pass(input), observers);
  return std::move(maps.maps);
}

LayerWalk Transformer::look_layers(const ModelInput& input, const LookOptions& wanted) const {
  const at::NoGradGuard no_grad;
  impl_->check(input);
  require<ShapeError>(input.tokens_bt.size(0) == 1, "model", "look() takes one text; got {} rows",
                      input.tokens_bt.size(0));
  PassContext pass = impl_->make_pass(input);
  at::Tensor x = impl_->embed(input.tokens_bt, pass.positions, pass.last_position);
  return LayerWalk(std::make_unique<LayerWalk::Work>(
      LayerWalk::Work{.model = *impl_,
                      .pass = std::move(pass),
                      .stream = {std::move(x), at::Tensor()},
                      .views = std::make_unique<LayerViews>(wanted)}));
}

std::vector<LayerView> Transformer::look(const ModelInput& input, const LookOptions& wanted) const {
  std::vector<LayerView> views;
  for (LayerWalk walk = look_layers(input, wanted); !walk.done();) {
    walk.next();
    views.push_back(walk.take_view());
  }
  return views;
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
