// The mixing path: from tensors to the kernels (kernels/common/mixing.h) and back.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/mixing.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "fovea/attention/kernel_types.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/stages.h"
#include "fovea/kernels/cpu/decode/mixing_decode.h"
#include "fovea/kernels/cpu/mixing/mixing.h"

namespace fovea {
namespace {

const float* data_of(const at::Tensor& x) {
  return x.numel() > 0 ? x.const_data_ptr<float>() : nullptr;
}

}  // namespace

bool joins_pairs(const AttentionSpec& spec) {
  return spec.multi_token.before.active() || spec.multi_token.after.active() ||
         spec.head_mix.before != HeadMixSpec::Kind::none ||
         spec.head_mix.after != HeadMixSpec::Kind::none;
}

MixingOperands mixing_operands(const AttentionTensors& tensors) {
  const auto floats = [](const at::Tensor& x) {
    return x.defined() ? x.to(at::kFloat).contiguous() : at::empty({0}, at::kFloat);
  };
  return {floats(tensors.kernel_before_hqk), floats(tensors.kernel_after_hqk),
          floats(tensors.mix_before_noi), floats(tensors.mix_after_nio)};
}

kernels::MixingRule mixing_rule(const MultiTokenSpec& tokens, const MixingOperands& x) {
  const auto kernel = [](const at::Tensor& taps_hqk) {
    return taps_hqk.numel() > 0
               ? kernels::KeyQueryKernel{data_of(taps_hqk), taps_hqk.size(1), taps_hqk.size(2)}
               : kernels::KeyQueryKernel{};
  };
  const auto mix = [](const at::Tensor& weights) {
    return weights.numel() > 0 ? kernels::HeadMix{data_of(weights), weights.size(1)}
                               : kernels::HeadMix{};
  };
  return {.kernel_before = kernel(x.kernel_before_hqk),
          .kernel_after = kernel(x.kernel_after_hqk),
          .mix_before = mix(x.mix_before_noi),
          .mix_after = mix(x.mix_after_nio),
          .equation = tokens.equation == MultiTokenSpec::Equation::eq4
                          ? kernels::KernelEquation::eq4
                          : kernels::KernelEquation::eq5,
          .renormalise = tokens.renormalise};
}

kernels::MixingRule mixing_sizes(const AttentionSpec& spec) {
  static constexpr float kSomewhere = 0.0f;
  const auto kernel = [](const KernelExtent& extent) {
    return kernels::KeyQueryKernel{extent.active() ? &kSomewhere : nullptr, extent.queries,
                                   extent.keys};
  };
  const auto mix = [&spec](HeadMixSpec::Kind kind) {
    const int64_t width = spec.head_mix.width(kind, spec.heads);
    return kernels::HeadMix{width > 0 ? &kSomewhere : nullptr, width};
  };
  return {.kernel_before = kernel(spec.multi_token.before),
          .kernel_after = kernel(spec.multi_token.after),
          .mix_before = mix(spec.head_mix.before),
          .mix_after = mix(spec.head_mix.after)};
}

at::Tensor contiguous_members(const AttentionCall& call) {
  return call.key_rule() == KeyRule::groups ? call.tensors.members_bs.contiguous() : at::Tensor();
}

kernels::MemberMask member_mask(const FocusSpec& focus, const at::Tensor& members_bs,
                                int64_t queries) {
  if (!members_bs.defined()) return {};
  const int64_t keys = members_bs.size(1);
  const int64_t* const key = members_bs.const_data_ptr<int64_t>();
  return {.query = key + keys - queries,
          .key = key,
          .query_batch = keys,
          .key_batch = keys,
          .window = focus.window,
          .sinks = focus.sinks};
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool joins_pairs(StageId stage) {
  return stage == StageId::convolution_before || stage == StageId::mix_before ||
         stage == StageId::convolution_after || stage == StageId::mix_after;
}

std::optional<std::string> why_not_stages(const AttentionCall& call) {
  // Its formulas may act in the stages that these kernels have.
  if (call.spec.own.active())
    return fmt::format("no mixing kernel for own.name '{}'", call.spec.own.name);
  for (const StageUse& use : call.stages()) {
    if (joins_pairs(use.stage) || !use.why_not_kernels) continue;
    return fmt::format("stage {}: no mixing kernel for {}", stage_of(use.stage).name, use.setting);
  }
  return std::nullopt;
}

/// What forward and backward share besides tensors. Travels through autograd as a capsule.
struct MixingCall : torch::CustomClassHolder {
  c10::intrusive_ptr<FusedCall> fused;
  MultiTokenSpec tokens;
  FocusSpec focus;
  at::Tensor members_bs;  ///< contiguous
};

/// What every kernel reads, forward and backward.
template <class T, class Problem>
void set_inputs(Problem& problem, const MixingCall& call, const FusedOperands& x,
                const MixingOperands& mixing) {
  problem.sizes = sizes_of(x);
  problem.rule = rule_of(*call.fused, x);
  problem.mixing = mixing_rule(call.tokens, mixing);
  problem.members = member_mask(call.focus, call.members_bs, x.q.size(2));
  problem.visits = call.fused->visits->visits;
  problem.q = rows_of<T>(x.q);
  problem.k = rows_of<T>(x.k);
  problem.v = rows_of<T>(x.v);
}

float* target_mixing(const at::Tensor& x) {
  return x.defined() ? x.mutable_data_ptr<float>() : nullptr;
}

// MixingGradients of every row of the batch (tau: of every head), to be summed; undefined without.
struct MixingGradients {
  at::Tensor q, k, v, tau_bht, sink_bh;
  at::Tensor kernel_before_bhqk, kernel_after_bhqk, mix_before_bnoi, mix_after_bnio;
  at::Tensor bias_bhn, gate_btk, gate_bsk;
};

MixingGradients mixing_gradients(const FusedOperands& x, const MixingOperands& mixing) {
  const auto options = x.q.options().dtype(at::kFloat);
  const int64_t b = x.q.size(0), h = x.q.size(1);
  const auto of_rows = [&](const at::Tensor& operand) {
    if (operand.numel() == 0) return at::Tensor();
    std::vector<int64_t> sizes = operand.sizes().vec();
    sizes.insert(sizes.begin(), b);
    return at::empty(sizes, options);
  };
  MixingGradients g{.q = empty_by_token(x.q.sizes().vec(), x.q.options()),
                    .k = empty_by_token(x.k.sizes().vec(), x.k.options()),
                    .v = empty_by_token(x.v.sizes().vec(), x.v.options()),
                    .kernel_before_bhqk = of_rows(mixing.kernel_before_hqk),
                    .kernel_after_bhqk = of_rows(mixing.kernel_after_hqk),
                    .mix_before_bnoi = of_rows(mixing.mix_before_noi),
                    .mix_after_bnio = of_rows(mixing.mix_after_nio)};
  if (x.tau_bt.numel() > 0) g.tau_bht = at::empty({b, h, x.q.size(2)}, options);
  if (x.sink_h.numel() > 0) g.sink_bh = at::empty({b, h}, options);
  if (x.bias_hn.numel() > 0) g.bias_bhn = at::empty({b, h, x.bias_hn.size(1)}, options);
  if (x.gate_bsk.numel() > 0) {
    g.gate_btk = at::empty(x.gate_btk.sizes(), options);
    g.gate_bsk = at::empty(x.gate_bsk.sizes(), options);
  }
  return g;
}

template <class T>
void run_backward(const MixingCall& call, const FusedOperands& x, const MixingOperands& mixing,
                  const at::Tensor& lse, const at::Tensor& row_sums, const at::Tensor& dout,
                  const at::Tensor& dlse, const MixingGradients& g) {
  kernels::MixingBackward<T> problem;
  set_inputs<T>(problem, call, x, mixing);
  problem.dout = rows_of<T>(dout);
  problem.lse = lse.const_data_ptr<float>();
  problem.row_sums = data_of(row_sums);
  problem.dlse = dlse.defined() ? dlse.const_data_ptr<float>() : nullptr;
  problem.dq = writable_rows_of<T>(g.q);
  problem.dk = writable_rows_of<T>(g.k);
  problem.dv = writable_rows_of<T>(g.v);
  problem.dkernel_before = target_mixing(g.kernel_before_bhqk);
  problem.dkernel_after = target_mixing(g.kernel_after_bhqk);
  problem.dmix_before = target_mixing(g.mix_before_bnoi);
  problem.dmix_after = target_mixing(g.mix_after_bnio);
  problem.dtau = target_mixing(g.tau_bht);
  problem.dsink = target_mixing(g.sink_bh);
  problem.dbias = target_mixing(g.bias_bhn);
  problem.dgate_query = target_mixing(g.gate_btk);
  problem.dgate_key = target_mixing(g.gate_bsk);
  kernels::run(problem);
}

/// What a forward pass leaves to the backward pass; row sums are empty without renormalise.
struct MixingResults {
  at::Tensor out, lse, row_sums;
};

// Gradients of all operands; dout or dlse may be undefined.
MixedOperands gradients_of(const MixingCall& call, const FusedOperands& x,
                           const MixingOperands& mixing, const MixingResults& results,
                           const at::Tensor& given_dout, const at::Tensor& given_dlse) {
  const at::Tensor dout = given_dout.defined()
                              ? contiguous_rows(given_dout.to(results.out.scalar_type()))
                              : at::zeros_like(results.out);
  const at::Tensor dlse =
      given_dlse.defined() ? given_dlse.to(at::kFloat).contiguous() : at::Tensor();
  const MixingGradients g = mixing_gradients(x, mixing);
  with_kernel_type(x.q.scalar_type(), "attention", [&]<class T>(T) {
    run_backward<T>(call, x, mixing, results.lse, results.row_sums, dout, dlse, g);
  });
  const auto summed = [](const at::Tensor& t, int64_t dim) { return t.defined() ? t.sum(dim) : t; };
  return {{g.q, g.k, g.v, summed(g.tau_bht, 1), summed(g.bias_bhn, 0), summed(g.sink_bh, 0),
           g.gate_btk, g.gate_bsk},
          {summed(g.kernel_before_bhqk, 0), summed(g.kernel_after_bhqk, 0),
           summed(g.mix_before_bnoi, 0), summed(g.mix_after_bnio, 0)}};
}

// Inputs q, k, v, tau [b, t], sink [h], kernels [h, cq, ck], mixes [n, m, m], bias by distance
// [h, n] and gate factors [b, t, K] and [b, s, K] (empty tensors where absent); outputs out and
// lse.
class FusedMixing : public torch::autograd::Function<FusedMixing> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& tau, const at::Tensor& sink,
                               const at::Tensor& kernel_before, const at::Tensor& kernel_after,
                               const at::Tensor& mix_before, const at::Tensor& mix_after,
                               const at::Tensor& bias, const at::Tensor& query_gate,
                               const at::Tensor& key_gate,
                               const c10::intrusive_ptr<MixingCall>& call) {
    const variable_list given{
        q,          k,         v,    tau,        sink,    kernel_before, kernel_after,
        mix_before, mix_after, bias, query_gate, key_gate};
    const auto operands = operands_of(given);
    const FusedOperands& x = operands.first;
    const MixingOperands& mixing = operands.second;
    const auto floats = q.options().dtype(at::kFloat);
    const at::Tensor out =
        empty_by_token({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    const at::Tensor lse = at::empty(q.sizes().slice(0, 3), floats);
    const at::Tensor row_sums =
        call->tokens.renormalise ? at::empty_like(lse) : at::empty({0}, floats);
    with_kernel_type(q.scalar_type(), "attention", [&]<class T>(T) {
      kernels::MixingForward<T> problem;
      set_inputs<T>(problem, *call, x, mixing);
      problem.out = writable_rows_of<T>(out);
      problem.lse = lse.mutable_data_ptr<float>();
      problem.row_sums = call->tokens.renormalise ? row_sums.mutable_data_ptr<float>() : nullptr;
      kernels::run(problem);
    });
    variable_list saved = given;
    saved.insert(saved.end(), {out, lse, row_sums});
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->set_materialize_grads(false);
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list s = ctx->get_saved_variables();
    const auto call =
        c10::static_intrusive_pointer_cast<MixingCall>(ctx->saved_data["call"].toCapsule());
    const auto operands = operands_of(s);
    const FusedOperands& x = operands.first;
    const MixingOperands& mixing = operands.second;
    const at::Tensor &out = s[kInputs], &lse = s[kInputs + 1], &row_sums = s[kInputs + 2];
    const auto [dx, dmixing] =
        gradients_of(*call, x, mixing, {out, lse, row_sums}, grads[0], grads[1]);
    return {dx.q,
            dx.k,
            dx.v,
            dx.tau_bt,
            dx.sink_h,
            dmixing.kernel_before_hqk,
            dmixing.kernel_after_hqk,
            dmixing.mix_before_noi,
            dmixing.mix_after_nio,
            dx.bias_hn,
            dx.gate_btk,
            dx.gate_bsk,
            {}};
  }

 private:
  static constexpr size_t kInputs = 12;

  static std::pair<FusedOperands, MixingOperands> operands_of(const variable_list& s) {
    return {FusedOperands{contiguous_rows(s[0]), contiguous_rows(s[1]), contiguous_rows(s[2]), s[3],
                          s[9], s[4], s[10], s[11]},
            MixingOperands{s[5], s[6], s[7], s[8]}};
  }
};

c10::intrusive_ptr<MixingCall> mixing_call(const AttentionCall& given) {
  auto call = c10::make_intrusive<MixingCall>();
  call->fused = fused_call(given);
  call->fused->visits = visits_of(given);
  call->tokens = given.spec.multi_token;
  call->focus = given.spec.focus;
  call->members_bs = contiguous_members(given);
  return call;
}

AttentionResult run_mixing(const AttentionCall& given) {
  auto call = mixing_call(given);
  AttentionResult result;
  result.path.plan = call->fused->visits->name;
  const FusedOperands x = fused_operands(given);
  const MixingOperands mixing = mixing_operands(given.tensors);
  with_kernel_type(x.q.scalar_type(), "attention",
                   [&]<class T>(T) { result.path.isa = kernels::mixing_isa<T>(); });
  const variable_list outputs =
      FusedMixing::apply(x.q, x.k, x.v, x.tau_bt, x.sink_h, mixing.kernel_before_hqk,
                         mixing.kernel_after_hqk, mixing.mix_before_noi, mixing.mix_after_nio,
                         x.bias_hn, x.gate_btk, x.gate_bsk, std::move(call));
  result.out_bhte = outputs[0].to(given.q.scalar_type());
  result.lse_bht = outputs[1];
  return result;
}

}  // namespace

std::optional<std::string> why_not_mixing(const AttentionCall& call) {
  const AttentionSpec& spec = call.spec;
  if (!joins_pairs(spec)) {
    if (auto why = why_not_pointwise(call)) return why;
    return "no stage joins queries, keys or heads";
  }
  const KeyRule rule = call.key_rule();
  if (rule != KeyRule::mask && rule != KeyRule::groups)
    return "no mixing kernel for this choice of keys";
  if (auto why = why_not_stages(call)) return why;
  if (auto why = why_not_gate(spec.focus)) return why;
  const at::ScalarType dtype = call.q.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf)
    return fmt::format("no mixing kernel for {}", at::toString(dtype));
  return kernels::why_not_mixing_kernels({.heads = spec.heads,
                                          .kv_heads = spec.kv_heads,
                                          .head_dim = spec.head_dim,
                                          .value_dim = spec.value_width()},
                                         mixing_sizes(spec));
}

bool has_mixing_backward(const AttentionCall& call) {
  return call.q.device().is_cpu() && call.q.scalar_type() != at::kHalf &&
         call.q.size(2) > kernels::kMostMixingQueries && joins_pairs(call.spec) &&
         !call.spec.multi_token.renormalise && !call.spec.focus.reads_strength() &&
         !why_not_mixing(call);
}

MixedOperands mixing_backward(const AttentionCall& call, const at::Tensor& out,
                              const at::Tensor& lse, const at::Tensor& dout,
                              const at::Tensor& dlse) {
  FusedOperands x = fused_operands(call);
  for (at::Tensor* t : {&x.q, &x.k, &x.v}) *t = contiguous_rows(*t);
  const at::Tensor no_sums = at::empty({0}, lse.options());
  return gradients_of(*mixing_call(call), x, mixing_operands(call.tensors), {out, lse, no_sums},
                      dout, dlse);
}

AttentionPath mixing_path() {
  return {
      .name = PathName::fused, .device = at::kCPU, .why_not = why_not_mixing, .run = run_mixing};
}

}  // namespace fovea
