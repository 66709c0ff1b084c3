// Training the groups of Focus: observation, calibration, and the losses that need no backward pass
// through the base (spec 11.7).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/nn/transformer_impl.h"

namespace fovea {
namespace {

using torch::autograd::AutogradContext;
using Variables = torch::autograd::variable_list;

// Sum over the wanted rows of KL(teacher || student) of the softmax of the logits, times `scale`;
// they exist `chunk` rows at a time. Differentiable in the student's states alone.
class Distillation : public torch::autograd::Function<Distillation> {
 public:
  static Variables forward(AutogradContext* ctx, const at::Tensor& student,
                           const at::Tensor& teacher, const at::Tensor& weight,
                           const at::Tensor& wanted, double scale, int64_t chunk,
                           const LogitTransform& rule) {
    const at::ScalarType wide = student.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor w = weight.to(wide);
    at::Tensor gradient = at::zeros_like(student),
               sum = at::zeros({}, student.options().dtype(wide));
    for (int64_t begin = 0; begin < student.size(0); begin += chunk) {
      const int64_t rows = std::min(chunk, student.size(0) - begin);
      const auto logits = [&](const at::Tensor& x) {
        const at::Tensor z = at::linear(x.narrow(0, begin, rows).to(wide), w) * rule.scale;
        return rule.cap > 0.0 ? at::tanh(z / rule.cap) * rule.cap : z;
      };
      const at::Tensor z = logits(student), ours = at::log_softmax(z, -1),
                       theirs = at::log_softmax(logits(teacher), -1);
      at::Tensor slope = (ours.exp() - theirs.exp()) * rule.scale;
      if (rule.cap > 0.0) slope = slope * (1.0 - (z / rule.cap).square());
      const at::Tensor keep = wanted.narrow(0, begin, rows).to(wide).unsqueeze(1);
      sum += (theirs.exp() * (theirs - ours) * keep).sum();
      gradient.narrow(0, begin, rows).copy_(at::matmul(slope * keep, w) * scale);
    }
    ctx->save_for_backward({gradient});
    return {sum * scale, sum};
  }

  static Variables backward(AutogradContext* ctx, const Variables& grads) {
    const at::Tensor gradient = ctx->get_saved_variables()[0];
    return {gradient * grads[0].to(gradient.scalar_type()), {}, {}, {}, {}, {}, {}};
  }
};

constexpr int64_t kNarrowValue = 8;  // the narrowest width that the fused kernels have

// The plain pass of a layer gives the lse of the full attention; this the lse of the gated one.
at::Tensor gated_lse(const AttentionInput& in, AttentionSpec spec, const LayerFocus& focus,
                     const LayerGroups& groups, const AttentionContext& context) {
  spec.focus.gate = FocusSpec::Gate::log;
  spec.value_dim = kNarrowValue;  // values do not matter
  spec.head_output = {};
  AttentionTensors tensors = in.tensors;
  for (at::Tensor* x : {&tensors.head_gain_e, &tensors.gate_weight, &tensors.gate_bias})
    *x = at::Tensor();
  put_groups(spec, focus, groups, tensors);
  const at::Tensor& k = in.heads.k_bgtd;
  const at::Tensor values =
      at::zeros({k.size(0), spec.value_heads(), k.size(2), kNarrowValue}, k.options());
  AttentionContext with_lse = context;
  with_lse.want_lse = true;
  return attention(spec, in.heads.q_bhtd, k, values, tensors, with_lse).lse_bht;
}

double divisor_of(double normaliser, int64_t count) {
  return normaliser > 0 ? normaliser : static_cast<double>(std::max<int64_t>(count, 1));
}

}  // namespace

bool Transformer::has_focus() const {
  return std::ranges::any_of(impl_->layers,
                             [](const LayerWeights& w) { return w.focus.defined(); });
}

void Transformer::observe(std::span<const ForwardInfo> micro_batches, double ema_decay,
                          double progress) {
  for (size_t layer = 0; layer < impl_->layers.size(); ++layer) {
    LayerWeights& w = impl_->layers[layer];
    if (w.routing.defined())
      follow_routes(w.routing, micro_batches, layer, impl_->config.attention.routing.decay);
    if (!w.focus.defined()) continue;
    std::vector<FocusObservation> parts;
    for (const ForwardInfo& info : micro_batches) {
      if (layer < info.focus.size() && info.focus[layer].defined())
        parts.push_back(info.focus[layer]);
    }
    observe_layer(w.spec, impl_->config.attention.focus, w.focus, parts, ema_decay, progress);
  }
}

void Transformer::calibrate(std::span<const ModelInput> batches) {
  if (!has_focus() || !impl_->config.attention.focus.standardise) return;
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> inputs(impl_->layers.size());
  for (const ModelInput& batch : batches) {
    impl_->check(batch);
    PassContext pass = impl_->make_pass(batch);
    pass.focus = FocusMode::off;
    std::vector<at::Tensor> seen;
    pass.layer_inputs = &seen;
    impl_->run(batch, pass, nullptr);
    for (size_t n = 0; n < seen.size(); ++n) inputs[n].push_back(seen[n].flatten(0, 1));
  }
  size_t n = 0;
  for (LayerWeights& w : impl_->layers) {
    if (!w.focus.defined()) continue;
    const std::vector<at::Tensor>& own = inputs[n++];
    if (own.empty() || w.focus.updates.item<float>() > 0.0f) continue;
    const InputStatistics statistics = input_statistics(at::cat(own));
    w.focus.mean.copy_(statistics.mean_c);
    w.focus.scale.copy_(statistics.scale);
  }
}

LossResult Transformer::kept_mass_loss(const ModelInput& input, const at::Tensor& targets_bt,
                                       double normaliser, ForwardInfo* info) const {
  impl_->check(input);
  require<UnsupportedError>(has_focus(), "model", "the kept-mass loss is of models with Focus");
  PassContext pass = impl_->make_pass(input);
  pass.focus = FocusMode::off;
  pass.attention.want_lse = true;
  if (info != nullptr) *info = {};
  Impl::Stream stream;
  std::vector<at::Tensor> losses;
  for (int64_t i = 0; i < impl_->config.layers; ++i) {
    const LayerWeights& w = impl_->layers[static_cast<size_t>(i)];
    AttentionContext context = pass.attention;
    context.layer = i;
    AttentionInput in;
    at::Tensor full_lse;
    {
      const at::NoGradGuard no_grad;
      if (i == 0) stream = {impl_->embed(input.tokens_bt, pass.positions), at::Tensor()};
      in = impl_->enter_layer(i, stream, pass);
      const AttentionResult full =
          attention(in.spec, in.heads.q_bhtd, in.heads.k_bgtd, in.heads.v_bgtd, in.tensors, context,
                    impl_->compute.attention_path);
      full_lse = full.lse_bht;
      stream = impl_->leave_layer(i, in.x, in.y, full.out_bhte, pass);
      if (info != nullptr) info->path = full.path;
    }
    if (!w.focus.defined()) continue;
    const LayerGroups groups = impl_->group_layer(w, in.y, context, pass.focus);
    losses.push_back((full_lse - gated_lse(in, w.spec, w.focus, groups, context)).mean());
    if (info != nullptr) {
      info->focus.resize(impl_->layers.size());
      info->focus[static_cast<size_t>(i)] = observation_of(w.spec, impl_->config.attention.focus,
                                                           w.focus, groups, context, pass.focus);
    }
  }
  const int64_t count = targets_bt.ge(0).sum().item<int64_t>();
  const at::Tensor sum = at::stack(losses).sum() * static_cast<double>(count);
  return {.loss = sum / divisor_of(normaliser, count),
          .nll_sum = sum.detach().to(at::kDouble),
          .targets = count};
}

LossResult Transformer::distillation_loss(const ModelInput& input, const at::Tensor& targets_bt,
                                          double normaliser, ForwardInfo* info) const {
  impl_->check(input);
  require<UnsupportedError>(has_focus(), "model", "distillation is of models with Focus");
  PassContext pass = impl_->make_pass(input);
  at::Tensor teacher;
  {
    const at::NoGradGuard no_grad;
    pass.focus = FocusMode::off;
    teacher = impl_->run(input, pass, nullptr).flatten(0, 1);
  }
  pass.focus = FocusMode::straight_through;
  const at::Tensor student = impl_->run(input, pass, info).flatten(0, 1);
  const at::Tensor wanted = targets_bt.flatten().ge(0);
  const int64_t count = wanted.sum().item<int64_t>();
  const Variables result = Distillation::apply(student, teacher, impl_->head.detach(), wanted,
                                               1.0 / divisor_of(normaliser, count),
                                               impl_->compute.loss_chunk, impl_->logit_rule(0.0));
  return {.loss = result[0], .nll_sum = result[1].detach().to(at::kDouble), .targets = count};
}

}  // namespace fovea
