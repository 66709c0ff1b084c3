// The mixing path: from tensors to the kernels (kernels/common/mixing.h) and back.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/mixing.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "fovea/attention/kernel_types.h"
#include "fovea/attention/mechanisms/mechanism.h"
#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/stages.h"
#include "fovea/kernels/cpu/mixing.h"

namespace fovea {
namespace {

/// The operands of the stages that join pairs, float32; empty tensors where a stage is neutral.
struct MixingOperands {
  at::Tensor kernel_before_hqk, kernel_after_hqk, mix_before_noi, mix_after_nio;
};

MixingOperands mixing_operands(const AttentionTensors& tensors) {
  const auto floats = [](const at::Tensor& x) {
    return x.defined() ? x.to(at::kFloat).contiguous() : at::empty({0}, at::kFloat);
  };
  return {floats(tensors.kernel_before_hqk), floats(tensors.kernel_after_hqk),
          floats(tensors.mix_before_noi), floats(tensors.mix_after_nio)};
}

const float* data_of(const at::Tensor& x) {
  return x.numel() > 0 ? x.const_data_ptr<float>() : nullptr;
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

// The rule of a spec by its sizes alone: whether there are kernels for it.
kernels::MixingRule sizes_of_rule(const AttentionSpec& spec) {
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

bool joins_pairs(StageId stage) {
  return stage == StageId::convolution_before || stage == StageId::mix_before ||
         stage == StageId::convolution_after || stage == StageId::mix_after;
}

bool joins_pairs(const AttentionSpec& spec) {
  return spec.multi_token.before.active() || spec.multi_token.after.active() ||
         spec.head_mix.before != HeadMixSpec::Kind::none ||
         spec.head_mix.after != HeadMixSpec::Kind::none;
}

std::optional<std::string> why_not_stages(const AttentionSpec& spec) {
  for (const StageUse& use : stage_uses(spec)) {
    const bool gate_or_bias = use.stage == StageId::gate_and_bias;
    if (joins_pairs(use.stage) || (!use.why_not_kernels && !gate_or_bias)) continue;
    return fmt::format("stage {}: no mixing kernel for {}", stage_of(use.stage).name, use.setting);
  }
  return std::nullopt;
}

template <class T>
void run_forward(const AttentionCall& given, const FusedCall& call, const FusedOperands& x,
                 const MixingOperands& mixing, const at::Tensor& out, const at::Tensor& lse) {
  kernels::run(kernels::MixingForward<T>{.sizes = sizes_of(x),
                                         .rule = rule_of(call, x),
                                         .mixing = mixing_rule(given.spec.multi_token, mixing),
                                         .visits = call.visits->visits,
                                         .q = rows_of<T>(x.q),
                                         .k = rows_of<T>(x.k),
                                         .v = rows_of<T>(x.v),
                                         .out = writable_rows_of<T>(out),
                                         .lse = lse.mutable_data_ptr<float>()});
}

AttentionResult run_mixing(const AttentionCall& given) {
  const auto call = fused_call(given);
  call->visits = visits_of(given);
  FusedOperands x = fused_operands(given);
  for (at::Tensor* t : {&x.q, &x.k, &x.v}) *t = contiguous_rows(*t);
  const at::Tensor out =
      empty_by_token({x.q.size(0), x.q.size(1), x.q.size(2), x.v.size(3)}, x.q.options());
  const at::Tensor lse = at::empty(x.q.sizes().slice(0, 3), x.q.options().dtype(at::kFloat));
  const MixingOperands mixing = mixing_operands(given.tensors);
  AttentionResult result;
  with_kernel_type(x.q.scalar_type(), "attention", [&]<class T>(T) {
    run_forward<T>(given, *call, x, mixing, out, lse);
    result.path.isa = kernels::mixing_isa<T>();
  });
  result.out_bhte = out.to(given.q.scalar_type());
  result.lse_bht = lse;
  result.path.plan = call->visits->name;
  return result;
}

}  // namespace

std::optional<std::string> why_not_mixing(const AttentionCall& call) {
  const AttentionSpec& spec = call.spec;
  if (!joins_pairs(spec)) {
    if (auto why = why_not_pointwise(call)) return why;
    return "no stage joins queries, keys or heads";
  }
  if (auto why = why_not_stages(spec)) return why;
  if (call.wants_gradient()) return "the mixing kernels have no gradient";
  const at::ScalarType dtype = call.q.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf)
    return fmt::format("no mixing kernel for {}", at::toString(dtype));
  return kernels::why_not_mixing_kernels({.heads = spec.heads,
                                          .kv_heads = spec.kv_heads,
                                          .head_dim = spec.head_dim,
                                          .value_dim = spec.value_width()},
                                         {}, sizes_of_rule(spec));
}

AttentionPath mixing_path() {
  return {.name = PathName::fused,
          .device = at::kCPU,
          .key_rule = KeyRule::mask,
          .why_not = why_not_mixing,
          .run = run_mixing};
}

}  // namespace fovea
