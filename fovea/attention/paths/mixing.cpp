// The mixing path: from tensors to the kernels (kernels/common/mixing.h) and back.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/mixing.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "fovea/attention/backend.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/stages.h"

namespace fovea {
namespace {

constexpr int64_t kSomeMember = 0;  // for questions to a backend

kernels::KernelEquation equation_of(const MultiTokenSpec& tokens) {
  return tokens.equation == MultiTokenSpec::Equation::eq4 ? kernels::KernelEquation::eq4
                                                          : kernels::KernelEquation::eq5;
}

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

kernels::MixingRule mixing_rule(const AttentionSpec& spec, const MixingOperands& x) {
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
          .equation = equation_of(spec.multi_token),
          .renormalise = spec.multi_token.renormalise};
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
          .mix_after = mix(spec.head_mix.after),
          .equation = equation_of(spec.multi_token),
          .renormalise = spec.multi_token.renormalise};
}

std::optional<std::string> why_not_mixed_rows(const kernels::Backend& backend,
                                              const AttentionSpec& spec, int64_t rows) {
  return backend.why_not(
      kernels::MixingDecode<float>{.sizes = sizes_of(spec, rows), .mixing = mixing_sizes(spec)});
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

/// Inputs: FusedOperands::list(), then MixingOperands::list(); results: out and lse.
struct MixingCall : Operation {
  c10::intrusive_ptr<FusedCall> fused;
  AttentionSpec spec;
  at::Tensor members_bs;  ///< contiguous

  Tensors forward(const Tensors& inputs, Tensors& kept) const override;
  Tensors backward(const Tensors& kept, const Tensors& grads,
                   const std::vector<bool>& wanted) const override;
};

/// What every kernel reads, forward and backward.
template <class T, class Problem>
void set_inputs(Problem& problem, const MixingCall& call, const FusedOperands& x,
                const MixingOperands& mixing) {
  problem.sizes = sizes_of(x);
  problem.rule = rule_of(*call.fused, x);
  problem.mixing = mixing_rule(call.spec, mixing);
  problem.members = member_mask(call.spec.focus, call.members_bs, x.q.size(2));
  problem.visits = call.fused->visits->visits;
  problem.q = rows_of<T>(x.q);
  problem.k = rows_of<T>(x.k);
  problem.v = rows_of<T>(x.v);
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
                  const FusedResults& r, const at::Tensor& row_sums, const MixingGradients& g) {
  kernels::MixingBackward<T> problem;
  set_inputs<T>(problem, call, x, mixing);
  problem.dout = rows_of<T>(r.dout);
  problem.lse = r.lse.const_data_ptr<float>();
  problem.row_sums = data_of(row_sums);
  problem.dlse = r.dlse.defined() ? r.dlse.const_data_ptr<float>() : nullptr;
  problem.dq = writable_rows_of<T>(g.q);
  problem.dk = writable_rows_of<T>(g.k);
  problem.dv = writable_rows_of<T>(g.v);
  problem.dkernel_before = floats_into(g.kernel_before_bhqk);
  problem.dkernel_after = floats_into(g.kernel_after_bhqk);
  problem.dmix_before = floats_into(g.mix_before_bnoi);
  problem.dmix_after = floats_into(g.mix_after_bnio);
  problem.dtau = floats_into(g.tau_bht);
  problem.dsink = floats_into(g.sink_bh);
  problem.dbias = floats_into(g.bias_bhn);
  problem.dgate_query = floats_into(g.gate_btk);
  problem.dgate_key = floats_into(g.gate_bsk);
  backend_for(x.q).run(problem);
}

/// What a forward pass leaves to the backward pass; row sums are empty without renormalise.
struct MixingResults {
  at::Tensor out, lse, row_sums;
};

// Gradients of all operands from those of the results; these may be undefined.
MixedOperands gradients_of(const MixingCall& call, const FusedOperands& x,
                           const MixingOperands& mixing, const MixingResults& results,
                           const Operation::Tensors& grads) {
  const FusedResults r = results_of(results.out, results.lse, grads);
  const MixingGradients g = mixing_gradients(x, mixing);
  with_kernel_type(x.q.scalar_type(), "attention",
                   [&]<class T>(T) { run_backward<T>(call, x, mixing, r, results.row_sums, g); });
  const auto summed = [](const at::Tensor& t, int64_t dim) { return t.defined() ? t.sum(dim) : t; };
  return {{g.q, g.k, g.v, summed(g.tau_bht, 1), summed(g.bias_bhn, 0), summed(g.sink_bh, 0),
           g.gate_btk, g.gate_bsk},
          {summed(g.kernel_before_bhqk, 0), summed(g.kernel_after_bhqk, 0),
           summed(g.mix_before_bnoi, 0), summed(g.mix_after_bnio, 0)}};
}

std::pair<FusedOperands, MixingOperands> mixing_inputs(const Operation::Tensors& list) {
  const size_t n = kFusedOperands;
  return {FusedOperands::of(list), MixingOperands{list[n], list[n + 1], list[n + 2], list[n + 3]}};
}

Operation::Tensors MixingCall::forward(const Tensors& inputs, Tensors& kept) const {
  const auto operands = mixing_inputs(inputs);
  const FusedOperands& x = operands.first;
  const auto floats = x.q.options().dtype(at::kFloat);
  const at::Tensor out =
      empty_by_token({x.q.size(0), x.q.size(1), x.q.size(2), x.v.size(3)}, x.q.options());
  const at::Tensor lse = at::empty(x.q.sizes().slice(0, 3), floats);
  const bool renormalises = spec.multi_token.renormalise;
  const at::Tensor row_sums = renormalises ? at::empty_like(lse) : at::empty({0}, floats);
  with_kernel_type(x.q.scalar_type(), "attention", [&]<class T>(T) {
    kernels::MixingForward<T> problem;
    set_inputs<T>(problem, *this, x, operands.second);
    problem.out = writable_rows_of<T>(out);
    problem.lse = lse.mutable_data_ptr<float>();
    problem.row_sums = renormalises ? row_sums.mutable_data_ptr<float>() : nullptr;
    backend_for(x.q).run(problem);
  });
  kept = inputs;
  kept.insert(kept.end(), {out, lse, row_sums});
  return {out, lse};
}

Operation::Tensors MixingCall::backward(const Tensors& kept, const Tensors& grads,
                                        const std::vector<bool>& /*wanted*/) const {
  const auto operands = mixing_inputs(kept);
  const size_t n = kept.size() - 3;
  const auto [dx, dmixing] = gradients_of(*this, operands.first, operands.second,
                                          {kept[n], kept[n + 1], kept[n + 2]}, grads);
  Tensors all = dx.list();
  for (const at::Tensor& x : dmixing.list()) all.push_back(x);
  return all;
}

// Asked for by why_not_mixing() on a device, and used by the run.
std::shared_ptr<const BatchVisits> made_visits(const AttentionCall& call) {
  return *call.made.get([&] { return visits_of(call); });
}

c10::intrusive_ptr<MixingCall> mixing_call(const AttentionCall& given) {
  auto call = c10::make_intrusive<MixingCall>();
  call->fused = fused_call(given);
  call->fused->visits = made_visits(given);
  call->spec = given.spec;
  call->members_bs = contiguous_members(given);
  return call;
}

AttentionResult run_mixing(const AttentionCall& given) {
  auto call = mixing_call(given);
  AttentionResult result;
  result.path.plan = call->fused->visits->name;
  const FusedOperands x = fused_operands(given);
  const MixingOperands mixing = mixing_operands(given.tensors);
  with_kernel_type(x.q.scalar_type(), "attention", [&]<class T>(T) {
    result.path.isa = backend_for(x.q).isa<kernels::MixingForward<T>>();
  });
  Operation::Tensors inputs = x.list();
  for (const at::Tensor& operand : mixing.list()) inputs.push_back(operand);
  const Operation::Tensors outputs = run_operation(std::move(call), inputs);
  result.out_bhte = outputs[0].to(given.q.scalar_type());
  result.lse_bht = outputs[1];
  return result;
}

// Reason of a backend that lacks settings or masks, which the CPU's has all of; asked with the
// plan's visits.
std::optional<std::string> why_not_there(const AttentionCall& call,
                                         const kernels::Backend& backend) {
  if (call.q.numel() == 0 || call.k.size(2) == 0) return "nothing to compute";
  kernels::MemberMask members;
  if (call.key_rule() == KeyRule::groups) members.key = &kSomeMember;
  return with_kernel_type(kernel_dtype(call.q.scalar_type()), "attention", [&]<class T>(T) {
    kernels::MixingForward<T> asked{
        .sizes = sizes_of(FusedOperands{.q = call.q, .k = call.k, .v = call.v}),
        .rule = asked_rule(call),
        .mixing = mixing_sizes(call.spec),
        .members = members};
    if (auto why = backend.why_not(asked)) return why;  // before the plan is made
    const auto visits = made_visits(call);
    asked.visits = visits->visits;
    return backend.why_not(asked);
  });
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
  const kernels::Backend* const backend = backend_of(call.q.device());
  if (backend == nullptr) return "no kernels for this device";
  const auto why = with_kernel_type(kernel_dtype(dtype), "attention", [&]<class T>(T) {
    return backend->why_not(
        kernels::MixingForward<T>{.sizes = sizes_of(spec), .mixing = mixing_sizes(spec)});
  });
  return why || call.q.is_cpu() ? why : why_not_there(call, *backend);
}

bool has_mixing_backward(const AttentionCall& call) {
  return call.q.scalar_type() != at::kHalf && call.q.size(2) > kernels::kMostMixingQueries &&
         joins_pairs(call.spec) && !call.spec.multi_token.renormalise &&
         !call.spec.focus.reads_strength() && !why_not_mixing(call);
}

MixedOperands mixing_backward(const AttentionCall& call, const at::Tensor& out,
                              const at::Tensor& lse, const at::Tensor& dout,
                              const at::Tensor& dlse) {
  FusedOperands x = fused_operands(call);
  for (at::Tensor* t : {&x.q, &x.k, &x.v}) *t = contiguous_rows(*t);
  const at::Tensor no_sums = at::empty({0}, lse.options());
  return gradients_of(*mixing_call(call), x, mixing_operands(call.tensors), {out, lse, no_sums},
                      {dout, dlse});
}

AttentionPath mixing_path() {
  return {.name = PathName::fused,
          .runs_on = has_kernels<kernels::MixingForward>,
          .why_not = why_not_mixing,
          .run = run_mixing};
}

}  // namespace fovea
