// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/walk.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "fovea/attention/mechanisms/sinkhorn.h"
#include "fovea/nn/layer_gather.h"
#include "fovea/nn/mechanisms/mechanism.h"
#include "fovea/nn/mechanisms/model_mechanism.h"
#include "fovea/nn/transformer_impl.h"

namespace fovea {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using Variables = torch::autograd::variable_list;

/// Recomputes a layer in the backward pass: the forward pass keeps only its inputs (gradient
/// checkpointing, Chen et al. 2016).
class Recompute : public Function<Recompute> {
 public:
  struct Layer {
    std::function<std::pair<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&)> run;
    std::function<void()> learned;  // its parameters have their gradients
  };

  static Variables forward(AutogradContext* ctx, const at::Tensor& x,
                           const std::optional<at::Tensor>& delta_in, const Layer* layer) {
    const at::Tensor delta = delta_in.value_or(at::Tensor());
    ctx->save_for_backward({x, delta});
    ctx->saved_data["layer"] = reinterpret_cast<int64_t>(layer);
    auto [a, b] = layer->run(x, delta);
    return b.defined() ? Variables{a, b} : Variables{a};
  }
  static Variables backward(AutogradContext* ctx, Variables grads) {
    const std::unique_ptr<const Layer> layer(
        reinterpret_cast<const Layer*>(ctx->saved_data["layer"].toInt()));
    const Variables saved = ctx->get_saved_variables();
    Variables inputs;
    for (const at::Tensor& t : saved) {
      inputs.push_back(t.defined() ? t.detach().set_requires_grad(true) : at::Tensor());
    }
    Variables outputs, output_grads;
    {
      const at::AutoGradMode enable(true);
      auto [a, b] = layer->run(inputs[0], inputs[1]);
      for (auto& [y, g] :
           {std::pair{a, grads[0]}, std::pair{b, grads.size() > 1 ? grads[1] : at::Tensor()}}) {
        if (!g.defined()) continue;
        outputs.push_back(y);
        output_grads.push_back(g);
      }
    }
    torch::autograd::backward(outputs, output_grads);
    layer->learned();
    return {inputs[0].grad(), inputs[1].defined() ? inputs[1].grad() : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

AttentionSpec spec_in_force(const AttentionSpec& configured, const ComputeOptions& compute,
                            FocusMode mode) {
  AttentionSpec spec = spec_in_mode(configured, mode, compute.focus_change);
  spec.temperature.value = ramped_temperature(spec.temperature.value, compute.temperature_ramp);
  return spec;
}

TemperatureRows KeySource::temperature(const TemperatureSpec& spec, int64_t head_dim,
                                       const TemperatureParameters& parameters, const at::Tensor& y,
                                       const AttentionContext& context) const {
  if (cache == nullptr) return temperature_rows(spec, head_dim, parameters, y, context);
  return {.tau_bt = cached_temperature(spec, head_dim, parameters, y, *cache)};
}

at::Tensor KeySource::potentials(const FocusSpec& spec, const at::Tensor& scores_btk,
                                 const AttentionContext& context, const at::Tensor& ema_k) const {
  return cache == nullptr ? token_potentials(spec, scores_btk, context, ema_k)
                          : cached_potentials(spec, scores_btk, ema_k, *cache);
}

AttentionResult KeySource::attend(const LayerStep& step, const AttentionContext& context) const {
  const Heads& heads = step.heads;
  const Path path = step.compute.attention_path;
  return cache == nullptr ? attention(step.spec, heads.q_bhtd, heads.k_bgtd, heads.v_bgtd,
                                      step.tensors, context, path)
                          : cached_attention(step.spec, *cache, heads.q_bhtd, heads.k_bgtd,
                                             heads.v_bgtd, step.tensors, path, sorted);
}

Reading LayerStep::temperature() const {
  if (!tensors.tau_bt.defined()) return Reading(spec.temperature.value);
  return Reading(tensors.tau_bt.detach().mean().to(at::kDouble) /
                 std::sqrt(static_cast<double>(config.head_dim)));
}

LayerStep Transformer::Impl::begin_layer(int64_t index, const PassContext& pass) const {
  const auto i = static_cast<size_t>(index);
  const LayerWeights& w = layers[i];
  LayerStep step{.index = index,
                 .layer = w,
                 .config = config,
                 .compute = compute,
                 .keys = pass.earlier == nullptr ? KeySource{}
                                                 : KeySource{.cache = &pass.earlier->layers[i],
                                                             .sorted = &pass.earlier->sorted[i]},
                 .spec = spec_in_force(w.spec, compute, pass.focus),
                 .tensors = w.stages};
  step.tensors.bias_table = bias_table;
  return step;
}

void Transformer::Impl::set_input(LayerStep& step, at::Tensor y, const PassContext& pass) const {
  step.y = std::move(y);
  for (const LearnedMechanism& m : learned_mechanisms())
    if (m.before_heads != nullptr) m.before_heads(step, pass);
}

void Transformer::Impl::set_heads(LayerStep& step, Heads heads, const PassContext& pass) const {
  step.heads = std::move(heads);
  for (const ModelMechanism& m : model_mechanisms())
    if (m.load != nullptr) m.load(step, pass);
  for (const LearnedMechanism& m : learned_mechanisms())
    if (m.load != nullptr) m.load(step, pass);
}

LayerStep Transformer::Impl::enter_layer(int64_t index, const Stream& stream,
                                         const PassContext& pass) const {
  LayerStep step = begin_layer(index, pass);
  auto [x, y] = attention_input(step.layer, stream);
  step.x = std::move(x);
  set_input(step, std::move(y), pass);
  set_heads(step, project(step.layer, step.y, pass), pass);
  return step;
}

Transformer::Impl::Stream Transformer::Impl::run_layer(int64_t index, const Stream& stream,
                                                       const PassContext& pass,
                                                       Observers observers) const {
  const LayerStep step = enter_layer(index, stream, pass);
  AttentionContext context = pass.attention;
  context.layer = index;
  for (LayerObserver* observer : observers) observer->before_attention(step, pass, context);
  const AttentionResult result = step.keys.attend(step, context);
  for (LayerObserver* observer : observers) observer->after_attention(step, pass, context, result);
  return leave_layer(index, step.x, step.y, result.out_bhte, pass);
}

Transformer::Impl::Stream Transformer::Impl::run_layer_checkpointed(int64_t index,
                                                                    const Stream& stream,
                                                                    const PassContext& pass,
                                                                    Observers observers) const {
  // The node owns this until its backward pass has run; a graph that is dropped without one frees
  // the tensors, not these few bytes.
  LayerGather* const gather = LayerGather::current();
  auto* layer = new Recompute::Layer{
      .run =
          [this, index, pass, observers, gather](const at::Tensor& x, const at::Tensor& delta) {
            const bool first_run = !at::GradMode::is_enabled();
            if (gather != nullptr && !first_run) gather->gather(index, index - 1);
            const Stream out =
                run_layer(index, {x, delta}, pass, first_run ? observers : Observers{});
            return std::pair{out.x, out.delta};
          },
      .learned =
          [index, gather] {
            if (gather != nullptr) gather->reduce(index);
          }};
  Variables r = Recompute::apply(
      stream.x, stream.delta.defined() ? std::optional(stream.delta) : std::nullopt,
      static_cast<const Recompute::Layer*>(layer));
  return {r[0], r.size() > 1 ? r[1] : at::Tensor()};
}

at::Tensor Transformer::Impl::walk(const at::Tensor& tokens_bt, const PassContext& pass,
                                   Observers observers) const {
  Stream stream{embed(tokens_bt, pass.positions, pass.last_position), at::Tensor()};
  stream.x = counter_dropout(stream.x, pass.training ? config.dropout : 0.0, pass.dropout_seed, 0);
  // Over a frozen base the first layers have nothing to recompute for.
  LayerGather* const gather = LayerGather::current();
  // A graph would keep the weights of a layer, so all are recomputed.
  if (gather != nullptr && at::GradMode::is_enabled() && !stream.x.requires_grad())
    stream.x = stream.x.detach().requires_grad_(true);
  const auto checkpoint = [&] {
    return (compute.checkpoint_layers || gather != nullptr) && at::GradMode::is_enabled() &&
           stream.x.requires_grad();
  };
  for (int64_t i = 0; i < config.layers; ++i) {
    if (gather != nullptr) gather->gather(i, i + 1 < config.layers ? i + 1 : -1);
    stream = checkpoint() ? run_layer_checkpointed(i, stream, pass, observers)
                          : run_layer(i, stream, pass, observers);
  }
  return finish(stream);
}

}  // namespace fovea
