// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/transformer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "fovea/attention/mechanisms/sinkhorn.h"
#include "fovea/attention/plan.h"
#include "fovea/base/error.h"
#include "fovea/base/rng.h"
#include "fovea/nn/matmul.h"
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
  using Layer =
      std::function<std::pair<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&)>;

  static Variables forward(AutogradContext* ctx, const at::Tensor& x,
                           const std::optional<at::Tensor>& delta_in, const Layer* layer) {
    const at::Tensor delta = delta_in.value_or(at::Tensor());
    ctx->save_for_backward({x, delta});
    ctx->saved_data["layer"] = reinterpret_cast<int64_t>(layer);
    auto [a, b] = (*layer)(x, delta);
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
      auto [a, b] = (*layer)(inputs[0], inputs[1]);
      for (auto& [y, g] :
           {std::pair{a, grads[0]}, std::pair{b, grads.size() > 1 ? grads[1] : at::Tensor()}}) {
        if (!g.defined()) continue;
        outputs.push_back(y);
        output_grads.push_back(g);
      }
    }
    torch::autograd::backward(outputs, output_grads);
    return {inputs[0].grad(), inputs[1].defined() ? inputs[1].grad() : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

void Transformer::Impl::check(const ModelInput& input) const {
  const at::Tensor& tokens = input.tokens_bt;
  require<ShapeError>(tokens.defined() && tokens.dim() == 2 && tokens.scalar_type() == at::kLong,
                      "model", "expected tokens [batch, tokens] of int64; got {}",
                      tokens.defined() ? fmt::format("{} dimensions of {}", tokens.dim(),
                                                     at::toString(tokens.scalar_type()))
                                       : "none");
  for (const at::Tensor& t : {input.documents_bt, input.positions_bt}) {
    require<ShapeError>(!t.defined() || t.sizes() == input.tokens_bt.sizes(), "model",
                        "documents and positions must have the shape of the tokens, [{}, {}]",
                        input.tokens_bt.size(0), input.tokens_bt.size(1));
  }
}

RopeTable Transformer::Impl::rope_for(int64_t positions) const {
  if (config.positions != Positions::rope) return {};
  const bool dynamic = config.rope.scaling.dynamic();
  if (!dynamic && positions <= config.context && compute.dtype != at::kDouble) return rope;
  // A dynamic rule depends on the length of the text; others only need enough rows.
  return make_rope_table(config.rope, config.head_dim,
                         dynamic ? positions : std::max(positions, config.context), device,
                         compute.dtype == at::kDouble ? at::kDouble : at::kFloat);
}

LogitTransform Transformer::Impl::logit_rule(double z_loss) const {
  return {.scale = config.logit_scale, .cap = config.logit_cap, .z_loss = z_loss};
}

at::Tensor Transformer::Impl::ruled(const at::Tensor& product) const {
  const at::Tensor z = config.logit_scale == 1.0 ? product : product * config.logit_scale;
  return config.logit_cap > 0.0 ? at::tanh(z / config.logit_cap) * config.logit_cap : z;
}

PassContext Transformer::Impl::make_pass(const ModelInput& input) const {
  const int64_t b = input.tokens_bt.size(0), t = input.tokens_bt.size(1);
  PassContext pass;
  pass.positions =
      input.positions_bt.defined()
          ? input.positions_bt.contiguous()
          : at::arange(t, at::TensorOptions(at::kLong).device(device)).expand({b, t}).contiguous();
  pass.rope = rope_for(t);
  pass.training = input.training;
  pass.dropout_seed = input.dropout_seed;
  pass.focus = compute.focus;
  pass.attention.training = input.training;
  pass.attention.dropout_seed = input.dropout_seed;
  pass.attention.plans = std::make_shared<PlanCache>();
  if (input.documents_bt.defined()) {
    pass.attention.query_documents_bt = pass.attention.key_documents_bs = input.documents_bt;
    pass.attention.query_positions_bt = pass.attention.key_positions_bs = pass.positions;
  }
  return pass;
}

AttentionTensors Transformer::Impl::tensors_of(const LayerWeights& layer,
                                               const at::Tensor& tau_bt) const {
  AttentionTensors tensors = layer.stages;
  tensors.tau_bt = tau_bt;
  tensors.bias_table = bias_table;
  if (!layer.lambdas.empty()) tensors.lambda_4d = at::stack(layer.lambdas);
  return tensors;
}

LayerGroups Transformer::Impl::group_layer(const LayerWeights& w, const at::Tensor& y,
                                           const AttentionContext& context, FocusMode mode) const {
  const FocusSpec spec = spec_in_mode(w.spec, FocusMode::configured, compute.focus_change).focus;
  const FocusParameters parameters = w.focus.parameters();
  LayerGroups out;
  out.features_btg =
      focus_features(parameters, config.attention.focus.stop_gradient ? y.detach() : y);
  out.scores_btk = focus_scores(spec, parameters, out.features_btg);
  out.groups = group_tokens(spec, out.scores_btk,
                            token_potentials(spec, out.scores_btk, context, w.focus.potentials));
  if (mode == FocusMode::random)
    out.groups.members_bt = random_members({y.size(0), y.size(1)}, spec.groups, spec.top_k,
                                           static_cast<uint64_t>(w.spec.depth))
                                .to(y.device());
  if (mode == FocusMode::window) out.groups.members_bt = at::zeros_like(out.groups.members_bt);
  return out;
}

AttentionInput Transformer::Impl::enter_layer(int64_t index, const Stream& stream,
                                              const PassContext& pass) const {
  const LayerWeights& w = layers[static_cast<size_t>(index)];
  AttentionInput in;
  in.spec = spec_in_mode(w.spec, pass.focus, compute.focus_change);
  std::tie(in.x, in.y) = attention_input(w, stream);
  at::Tensor tau;
  double& constant = in.spec.temperature.value;
  constant = 1.0 + compute.temperature_ramp * (constant - 1.0);
  in.temperature = constant;
  if (w.spec.temperature.kind == TemperatureSpec::Kind::learned) {
    TemperatureRows rows =
        temperature_rows(w.spec.temperature, config.head_dim, w.temperature, in.y, pass.attention);
    tau = rows.tau_bt;
    in.temperature =
        tau.detach().mean().item<double>() / std::sqrt(static_cast<double>(config.head_dim));
    in.clipped_share = rows.clipped_share.item<double>();
  }
  in.heads = project(w, in.y, pass);
  in.tensors = tensors_of(w, tau);
  if (w.routing.defined()) in.routes = route(w, in.heads, in.tensors);
  if (w.focus.defined() && pass.layer_inputs != nullptr) pass.layer_inputs->push_back(in.y);
  if (in.spec.focus.active()) {
    in.groups = group_layer(w, in.y, pass.attention, pass.focus);
    put_groups(in.spec, w.focus, in.groups, in.tensors);
    if (pass.group_losses != nullptr) {
      const at::Tensor loss = group_losses(config.attention.focus, in.groups.groups.groups_btk);
      if (loss.defined()) pass.group_losses->push_back(loss);
    }
  }
  return in;
}

Transformer::Impl::Stream Transformer::Impl::run_layer(int64_t index, Stream stream,
                                                       const PassContext& pass,
                                                       ForwardInfo* info) const {
  const AttentionInput in = enter_layer(index, stream, pass);
  AttentionContext context = pass.attention;
  context.layer = index;
  context.want_tiles = info != nullptr && in.spec.focus.gate == FocusSpec::Gate::hard;
  const AttentionResult result =
      attention(in.spec, in.heads.q_bhtd, in.heads.k_bgtd, in.heads.v_bgtd, in.tensors, context,
                compute.attention_path);
  if (info != nullptr) {
    info->path = result.path;
    info->fused_layers += result.path.is_ours() ? 1 : 0;
    info->temperature.push_back(in.temperature);
    info->clipped_share += in.clipped_share / static_cast<double>(config.layers);
    if (in.spec.focus.active()) {
      const LayerWeights& w = layers[static_cast<size_t>(index)];
      info->focus.resize(layers.size());
      info->focus[static_cast<size_t>(index)] = observation_of(
          in.spec, config.attention.focus, w.focus, in.groups, pass.attention, pass.focus);
      info->focus[static_cast<size_t>(index)].path = result.path;
    }
    if (in.routes.query_bht.defined()) {
      info->routing.resize(layers.size());
      info->routing[static_cast<size_t>(index)] = observe_routes(
          in.routes, in.spec.routing.clusters, in.heads.plain_q_bhtd, in.heads.plain_k_bgtd);
    }
  }
  return leave_layer(index, in.x, in.y, result.out_bhte, pass);
}

at::Tensor Transformer::Impl::run(const ModelInput& input, const PassContext& pass,
                                  ForwardInfo* info) const {
  if (info != nullptr) *info = {};
  Stream stream{embed(input.tokens_bt, pass.positions), at::Tensor()};
  stream.x = counter_dropout(stream.x, pass.training ? config.dropout : 0.0, pass.dropout_seed, 0);
  // Over a frozen base the first layers have nothing to recompute for.
  const auto checkpoint = [&] {
    return compute.checkpoint_layers && at::GradMode::is_enabled() && stream.x.requires_grad();
  };
  for (int64_t i = 0; i < config.layers; ++i) {
    stream = checkpoint() ? run_layer_checkpointed(i, stream, pass, info)
                          : run_layer(i, stream, pass, info);
  }
  return finish(stream);
}

Transformer::Impl::Stream Transformer::Impl::run_layer_checkpointed(int64_t index, Stream stream,
                                                                    const PassContext& pass,
                                                                    ForwardInfo* info) const {
  // The node owns this until its backward pass has run; a graph that is dropped without one frees
  // the tensors, not these few bytes.
  auto* layer =
      new Recompute::Layer([this, index, pass, info](const at::Tensor& x, const at::Tensor& delta) {
        ForwardInfo* first_run = at::GradMode::is_enabled() ? nullptr : info;
        const Stream out = run_layer(index, {x, delta}, pass, first_run);
        return std::pair{out.x, out.delta};
      });
  Variables r = Recompute::apply(
      stream.x, stream.delta.defined() ? std::optional(stream.delta) : std::nullopt,
      static_cast<const Recompute::Layer*>(layer));
  return {r[0], r.size() > 1 ? r[1] : at::Tensor()};
}

Transformer::Transformer(const ModelConfig& config, uint64_t seed, at::Device device)
    : impl_(std::make_unique<Impl>(config, seed, device)) {}
Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;

const ModelConfig& Transformer::config() const { return impl_->config; }
ParameterRegistry& Transformer::parameters() { return impl_->registry; }
const ParameterRegistry& Transformer::parameters() const { return impl_->registry; }
at::Device Transformer::device() const { return impl_->device; }
ComputeOptions& Transformer::compute() { return impl_->compute; }

at::Tensor Transformer::hidden(const ModelInput& input, ForwardInfo* info) const {
  impl_->check(input);
  return impl_->run(input, impl_->make_pass(input), info);
}

at::Tensor Transformer::logits(const at::Tensor& hidden) const {
  const at::ScalarType wide = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor z = !at::GradMode::is_enabled() && is_few_rows(hidden, {impl_->head})
                           ? few_rows_product(hidden, {impl_->head}, wide)
                           : at::linear(hidden.to(wide), impl_->head.to(wide));
  return impl_->ruled(z);
}

LossResult Transformer::loss(const ModelInput& input, const at::Tensor& targets_bt,
                             double normaliser, ForwardInfo* info, double z_loss) const {
  impl_->check(input);
  PassContext pass = impl_->make_pass(input);
  std::vector<at::Tensor> group_losses;
  const FocusSettings& focus = impl_->config.attention.focus;
  if (input.training && (focus.entropy_weight > 0.0 || focus.balance_weight > 0.0)) {
    require<UnsupportedError>(!impl_->compute.checkpoint_layers, "model",
                              "'model.attention.focus.entropy_weight' and 'balance_weight' need "
                              "the layers' graphs; set 'train.gradient_checkpointing: false'");
    pass.group_losses = &group_losses;
  }
  const at::Tensor states = impl_->run(input, pass, info);
  const at::Tensor targets = targets_bt.flatten();
  const int64_t count = targets.ge(0).sum().item<int64_t>();
  const double divisor =
      normaliser > 0 ? normaliser : static_cast<double>(std::max<int64_t>(count, 1));
  auto [loss, nll] = linear_cross_entropy(states.flatten(0, 1), impl_->head, targets, 1.0 / divisor,
                                          impl_->compute.loss_chunk, impl_->logit_rule(z_loss));
  for (const at::Tensor& extra : group_losses)
    loss = loss + extra * (static_cast<double>(count) / divisor);
  return {.loss = loss, .nll_sum = nll.sum(at::kDouble), .targets = count};
}

at::Tensor Transformer::token_nll(const ModelInput& input, const at::Tensor& targets_bt,
                                  ForwardInfo* info) const {
  const at::NoGradGuard no_grad;
  const at::Tensor states = hidden(input, info).flatten(0, 1);
  // Scores are read to three digits: logits in float32 even where the model computes in bfloat16.
  const at::Tensor wide = states.scalar_type() == at::kBFloat16 ? states.to(at::kFloat) : states;
  return linear_cross_entropy(wide, impl_->head, targets_bt.flatten(), 1.0,
                              impl_->compute.loss_chunk, impl_->logit_rule(0.0))
      .second.view(targets_bt.sizes());
}

at::Tensor Transformer::attention_map(const ModelInput& input, int64_t layer) const {
  const at::NoGradGuard no_grad;
  impl_->check(input);
  require<ShapeError>(layer >= 0 && layer < impl_->config.layers, "attention map",
                      "expected a layer below {}; got {}", impl_->config.layers, layer);
  const PassContext pass = impl_->make_pass(input);
  Impl::Stream stream{impl_->embed(input.tokens_bt, pass.positions), at::Tensor()};
  for (int64_t i = 0; i < layer; ++i) stream = impl_->run_layer(i, stream, pass, nullptr);
  const AttentionInput in = impl_->enter_layer(layer, stream, pass);
  std::vector<int64_t> all_heads, all_rows;
  for (int64_t h = 0; h < in.spec.output_heads(); ++h) all_heads.push_back(h);
  for (int64_t t = 0; t < input.tokens_bt.size(1); ++t) all_rows.push_back(t);
  return attention_rows(in.spec, in.heads.q_bhtd, in.heads.k_bgtd, in.tensors, pass.attention,
                        all_heads, all_rows)[0];
}

}  // namespace fovea
