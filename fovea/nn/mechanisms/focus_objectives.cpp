// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/mechanisms/focus_objectives.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "fovea/base/error.h"

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
at::Tensor gated_lse(const LayerStep& step, const LayerGroups& groups,
                     const AttentionContext& context) {
  AttentionSpec spec = step.layer.spec;
  spec.focus.gate = FocusSpec::Gate::log;
  spec.value_dim = kNarrowValue;  // values do not matter
  spec.head_output = {};
  AttentionTensors tensors = step.tensors;
  for (at::Tensor* x : {&tensors.head_gain_e, &tensors.gate_weight, &tensors.gate_bias})
    *x = at::Tensor();
  set_groups(spec, step.layer.focus, groups, tensors);
  const at::Tensor& k = step.heads.k_bgtd;
  const at::Tensor values =
      at::zeros({k.size(0), spec.value_heads(), k.size(2), kNarrowValue}, k.options());
  AttentionContext with_lse = context;
  with_lse.want_lse = true;
  return attention(spec, step.heads.q_bhtd, k, values, tensors, with_lse).lse_bht;
}

// Gathers -mean ln(kept mass) of every layer with Focus; the walk runs without gradients.
class KeptMass final : public LayerObserver {
 public:
  explicit KeptMass(ForwardInfo* info) : info_(info) {}

  void before_attention(const LayerStep& /*step*/, const PassContext& /*pass*/,
                        AttentionContext& context) override {
    context.want_lse = true;
  }
  void after_attention(const LayerStep& step, const PassContext& pass,
                       const AttentionContext& context, const AttentionResult& full) override {
    const LayerFocus& focus = step.layer.focus;
    if (!focus.defined()) return;
    const at::AutoGradMode as_the_caller(gradients_);
    const LayerGroups groups = groups_of(step, pass, pass.focus);
    losses_.push_back((full.lse_bht - gated_lse(step, groups, context)).mean());
    if (info_ == nullptr) return;
    info_->focus.resize(static_cast<size_t>(step.config.layers));
    info_->focus[static_cast<size_t>(step.index)] = observation_of(
        step.layer.spec, step.config.attention.focus, focus, groups, context, pass.focus);
  }
  at::Tensor sum() const { return at::stack(losses_).sum(); }

 private:
  ForwardInfo* info_;
  bool gradients_ = at::GradMode::is_enabled();
  std::vector<at::Tensor> losses_;
};

LossResult kept_mass(const Transformer::Impl& model, const ModelInput& input,
                     const at::Tensor& targets_bt, double normaliser, ForwardInfo* info) {
  PassContext pass = model.make_pass(input);
  pass.focus = FocusMode::off;
  Telemetry telemetry(info);
  KeptMass kept(info);
  LayerObserver* const observers[] = {&telemetry, &kept};
  {
    const at::NoGradGuard no_grad;
    model.walk(input.tokens_bt, pass, observers);
  }
  const at::Tensor count = targets_bt.ge(0).sum();
  const at::Tensor kept_sum = kept.sum(), sum = kept_sum * count.to(kept_sum.scalar_type());
  return {.loss = sum / loss_divisor(normaliser, count),
          .nll_sum = sum.detach().to(at::kDouble),
          .targets = count};
}

LossResult distillation(const Transformer::Impl& model, const ModelInput& input,
                        const at::Tensor& targets_bt, double normaliser, ForwardInfo* info) {
  PassContext pass = model.make_pass(input);
  at::Tensor teacher;
  {
    const at::NoGradGuard no_grad;
    pass.focus = FocusMode::off;
    teacher = model.walk(input.tokens_bt, pass, {}).flatten(0, 1);
  }
  pass.focus = FocusMode::straight_through;
  Telemetry telemetry(info);
  LayerObserver* const observers[] = {&telemetry};
  const at::Tensor student = model.walk(input.tokens_bt, pass, observers).flatten(0, 1);
  const at::Tensor wanted = targets_bt.flatten().ge(0);
  const at::Tensor count = wanted.sum();
  const Variables result = Distillation::apply(student, teacher, model.head.detach(), wanted,
                                               1.0 / loss_divisor(normaliser, count),
                                               model.compute.loss_chunk, model.logit_rule(0.0));
  return {.loss = result[0], .nll_sum = result[1].detach().to(at::kDouble), .targets = count};
}

constexpr MechanismObjective kObjectives[] = {{.name = "kept_mass", .run = kept_mass},
                                              {.name = "distillation", .run = distillation}};

}  // namespace

std::span<const MechanismObjective> focus_objectives() { return kObjectives; }

}  // namespace fovea
