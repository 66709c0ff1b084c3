// Arguments of the kernels from tensors.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/fused_call.h"

#include <limits>

#include "fovea/attention/backend.h"
#include "fovea/attention/positions/bias.h"

namespace fovea {
namespace {

const float* floats(const at::Tensor& x) {
  return x.defined() && x.numel() > 0 ? x.const_data_ptr<float>() : nullptr;
}

}  // namespace

GateForm gate_form(const FocusSpec& focus, double strength) {
  using Form = kernels::PairGate::Form;
  switch (focus.gate) {
    case FocusSpec::Gate::log:
      return {Form::weight, 1.0, focus.epsilon};
    case FocusSpec::Gate::straight_through:
      return {Form::capped_weight, 1.0, focus.epsilon};
    case FocusSpec::Gate::identity:
      return {Form::weight, static_cast<double>(focus.groups), focus.epsilon};
    case FocusSpec::Gate::mul:
      return {Form::sigmoid_logit, strength, 0.0};
    case FocusSpec::Gate::logsig:
      return {Form::sigmoid_weight, strength, -strength * focus.threshold};
    default:
      return {};
  }
}

namespace {

GateForm gate_form(const FocusSpec& focus) { return fovea::gate_form(focus, focus.strength); }

// Straight-through (U-8): z counts the groups that two tokens share; its gradient is that of the
// agreement g_i.g_j. Columns that are 0 carry it:
//   [h_i, g_i - g_i*, g_i*].[h_j, g_j*, g_j - g_j*], h in {0, 1}^K, * without gradient
std::pair<at::Tensor, at::Tensor> straight_through_factors(int64_t queries,
                                                           const AttentionTensors& tensors) {
  const at::Tensor soft = tensors.groups_bsk.to(at::kFloat), fixed = soft.detach();
  const at::Tensor bits = at::arange(soft.size(-1), tensors.members_bs.options());
  const at::Tensor hard =
      tensors.members_bs.unsqueeze(-1).bitwise_right_shift(bits).bitwise_and(1).to(at::kFloat);
  const at::Tensor none = soft - fixed;
  const at::Tensor rows = at::cat({hard, none, fixed}, -1);
  return {rows.narrow(1, rows.size(1) - queries, queries).contiguous(),
          at::cat({hard, fixed, none}, -1)};
}

// The factors of queries, the last t of the tokens, and of keys. Differentiable. A learned strength
// lambda joins as one column more: lambda (g_i.g_j - theta) = [lambda g_i, -lambda theta].[g_j, 1].
std::pair<at::Tensor, at::Tensor> gate_factors(const FocusSpec& focus, int64_t queries,
                                               const AttentionTensors& tensors) {
  if (focus.gate == FocusSpec::Gate::straight_through)
    return straight_through_factors(queries, tensors);
  const at::Tensor keys = tensors.groups_bsk.to(at::kFloat);
  const at::Tensor rows = keys.narrow(1, keys.size(1) - queries, queries);
  if (!focus.reads_strength()) {
    const double gain = gate_form(focus).gain;
    return {(gain == 1.0 ? rows : rows * gain).contiguous(), keys.contiguous()};
  }
  const at::Tensor lambda = tensors.focus_strength.to(at::kFloat);
  const at::Tensor threshold = (lambda * -focus.threshold).expand({rows.size(0), queries, 1});
  return {at::cat({rows * lambda, threshold}, -1),
          at::cat({keys, at::ones({keys.size(0), keys.size(1), 1}, keys.options())}, -1)};
}

// Agreements are not negative, so only the threshold makes z small. A learned strength stands in
// the last column, times the threshold. Kernels of other devices do not ask: the host cannot read
// it there.
float least_gate(const FusedCall& call, const FusedOperands& x) {
  const kernels::PairGate& gate = call.rule.gate;
  if (gate.form != kernels::PairGate::Form::sigmoid_weight || !call.learned_gate)
    return gate.offset;
  if (!x.gate_btk.is_cpu()) return -std::numeric_limits<float>::infinity();
  return x.gate_btk.numel() > 0 ? x.gate_btk.const_data_ptr<float>()[x.gate_btk.size(2) - 1] : 0.0f;
}

}  // namespace

c10::intrusive_ptr<FusedCall> fused_call(const AttentionCall& given) {
  const AttentionSpec& spec = given.spec;
  auto call = c10::make_intrusive<FusedCall>();
  call->want_stats = given.context.want_stats;
  call->rule.scale = static_cast<float>(spec.logit_scale());
  call->rule.soft_cap = static_cast<float>(spec.soft_cap);
  if (spec.bias.kind == BiasSpec::Kind::t5 && !spec.mask.causal)
    call->rule.bias_first = -spec.bias.max_distance;
  if (spec.bias.kind == BiasSpec::Kind::alibi) {
    const std::vector<double> slopes = alibi_slopes(spec.heads);
    call->alibi_h = at::tensor(slopes, at::kFloat).to(given.q.device());
  }
  if (const GateForm gate = gate_form(spec.focus); gate.form != kernels::PairGate::Form::none) {
    call->rule.gate = {
        .form = gate.form,
        .offset = static_cast<float>(spec.focus.reads_strength() ? 0.0 : gate.offset),
        .window = spec.focus.window,
        .sinks = spec.focus.sinks};
    call->learned_gate = spec.focus.reads_strength();
  }
  if (given.context.training) {
    call->rule.dropout = static_cast<float>(spec.dropout);
    call->rule.dropout_seed = given.context.dropout_seed;
    call->rule.dropout_layer = static_cast<uint32_t>(given.context.layer);
  }
  return call;
}

kernels::ScoreParameters asked_rule(const AttentionCall& call) {
  static constexpr float kGiven = 0.0f;
  kernels::ScoreParameters rule{.soft_cap = static_cast<float>(call.spec.soft_cap),
                                .dropout = call.drops_weights() ? 0.5f : 0.0f};
  const FocusSpec& focus = call.spec.focus;
  const bool sorts = focus.gate == FocusSpec::Gate::straight_through;
  rule.gate = {.form = gate_form(focus).form,
               .window = focus.window,
               .sinks = focus.sinks,
               .columns = focus.groups * (sorts ? 3 : 1) + (focus.reads_strength() ? 1 : 0)};
  if (call.tensors.tau_bt.defined()) rule.tau = &kGiven;
  if (call.tensors.bias_table.defined()) rule.distance_bias = &kGiven;
  if (call.tensors.sink_logit_h.defined()) rule.sink_logit = &kGiven;
  if (call.spec.bias.kind == BiasSpec::Kind::alibi) rule.alibi = &kGiven;
  return rule;
}

FusedOperands fused_operands(const AttentionCall& call) {
  const AttentionTensors& tensors = call.tensors;
  const bool half = call.q.scalar_type() == at::kHalf;
  const auto widened = [half](const at::Tensor& x) { return half ? x.to(at::kFloat) : x; };
  const at::Tensor none = at::empty({0}, call.q.options().dtype(at::kFloat));
  const auto row_floats = [&none](const at::Tensor& x) {
    return x.defined() ? x.to(at::kFloat).contiguous() : none;
  };
  FusedOperands x{
      widened(call.q),
      widened(call.k),
      widened(call.v),
      row_floats(tensors.tau_bt),
      tensors.bias_table.defined() ? bias_by_distance(call.spec, tensors.bias_table) : none,
      row_floats(tensors.sink_logit_h),
      none,
      none};
  if (gate_form(call.spec.focus).form != kernels::PairGate::Form::none)
    std::tie(x.gate_btk, x.gate_bsk) = gate_factors(call.spec.focus, call.q.size(2), tensors);
  return x;
}

kernels::ScoreParameters rule_of(const FusedCall& call, const FusedOperands& x) {
  kernels::ScoreParameters rule = call.rule;
  rule.tau = floats(x.tau_bt);
  rule.distance_bias = floats(x.bias_hn);
  rule.bias_count = x.bias_hn.defined() && x.bias_hn.numel() > 0 ? x.bias_hn.size(1) : 0;
  rule.sink_logit = floats(x.sink_h);
  if (x.gate_bsk.defined() && x.gate_bsk.numel() > 0) {
    rule.gate.least = least_gate(call, x);
    rule.gate.columns = x.gate_bsk.size(2);
    rule.gate.query = floats(x.gate_btk);
    rule.gate.key = floats(x.gate_bsk);
    rule.gate.query_batch = x.gate_btk.stride(0);
    rule.gate.key_batch = x.gate_bsk.stride(0);
  } else {
    rule.gate.form = kernels::PairGate::Form::none;
  }
  rule.alibi = floats(call.alibi_h);
  return rule;
}

kernels::AttentionSizes sizes_of(const FusedOperands& x) {
  return {.batch = x.q.size(0),
          .heads = x.q.size(1),
          .kv_heads = x.k.size(1),
          .queries = x.q.size(2),
          .keys = x.k.size(2),
          .head_dim = x.q.size(3),
          .value_dim = x.v.size(3)};
}

kernels::AttentionSizes sizes_of(const AttentionSpec& spec, int64_t queries) {
  return {.heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .queries = queries,
          .head_dim = spec.head_dim,
          .value_dim = spec.value_width()};
}

at::Tensor groups_gradient(const AttentionSpec& spec, const at::Tensor& dgate_btk,
                           const at::Tensor& dgate_bsk) {
  at::Tensor of_queries = dgate_btk, d = dgate_bsk;
  if (spec.focus.gate == FocusSpec::Gate::straight_through) {
    of_queries = dgate_btk.narrow(2, spec.focus.groups, spec.focus.groups);
    d = dgate_bsk.narrow(2, 2 * spec.focus.groups, spec.focus.groups);
  }
  d = d.clone();
  d.narrow(1, d.size(1) - of_queries.size(1), of_queries.size(1))
      .add_(of_queries, gate_form(spec.focus).gain);
  return d;
}

std::string kernel_isa(const at::Tensor& x) {
  return with_kernel_type(x.scalar_type(), "attention", [&]<class T>(T) {
    return std::string(backend_for(x).isa<kernels::AttentionForward<T>>());
  });
}

}  // namespace fovea
