// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "problem.h"

namespace fovea::python {
namespace {

// Where an operand of a question is, which has no numbers (device.h).
constexpr float kAsked = 0.0f;

const float* floats(const std::optional<Tensor>& x) {
  if (!x || x->numel() == 0) return nullptr;
  const auto* const data = static_cast<const float*>(x->const_data_ptr());
  return data != nullptr ? data : &kAsked;
}

// A question has no numbers.
uint64_t seed_of(const std::optional<Tensor>& x) {
  const void* const data = x ? x->const_data_ptr() : nullptr;
  return data != nullptr ? *static_cast<const uint64_t*>(data) : 0;
}

kernels::PairGate pair_gate(const Call& call) {
  using Form = kernels::PairGate::Form;
  kernels::PairGate gate;
  if (!call[kGateQuery]) return gate;
  constexpr Form kForms[] = {Form::none, Form::weight, Form::capped_weight, Form::sigmoid_weight,
                             Form::sigmoid_logit};
  const Tensor &query = *call[kGateQuery], &key = *call[kGateKey];
  gate = {.form = kForms[call.gate],
          .offset = static_cast<float>(call.gate_offset),
          .window = call.near,
          .sinks = call.near_sinks,
          .columns = query.size(2),
          .query = floats(query),
          .key = floats(key),
          .query_batch = query.stride(0),
          .key_batch = key.stride(0)};
  // Agreements are not negative, so only the threshold makes z small: the last column of a learned
  // strength, which the host reads on the CPU alone.
  if (gate.form == Form::sigmoid_weight && !call.gate_learned)
    gate.least = gate.offset;
  else if (gate.form == Form::sigmoid_weight && query.is_cpu())
    gate.least = query.numel() > 0 ? gate.query[gate.columns - 1] : gate.offset;
  return gate;
}

}  // namespace

Family family_of(const Call& call, const Pairs& pairs) {
  if (!pairs.plans.empty() || call[kBlockPairs]) return Family::planned;
  if (!pairs.rows.empty()) return Family::few_rows;
  if (call.joins_pairs()) return Family::joined;
  if (!call[kMembers]) return Family::plain;
  return call.q.is_cpu() ? Family::joined : Family::focus;
}

kernels::ScoreParameters score_parameters(const Call& call) {
  return {.scale = static_cast<float>(call.scale),
          .tau = floats(call[kTau]),
          .soft_cap = static_cast<float>(call.soft_cap),
          .alibi = floats(call[kAlibi]),
          .distance_bias = floats(call[kBias]),
          .bias_first = call.bias_first,
          .bias_count = call[kBias] ? call[kBias]->size(1) : 0,
          .sink_logit = floats(call[kSinkLogit]),
          .dropout = static_cast<float>(call.dropout),
          .dropout_seed = seed_of(call[kDropoutSeed]),
          .dropout_layer = static_cast<uint32_t>(call.dropout_layer),
          .gate = pair_gate(call)};
}

kernels::MixingRule mixing_rule(const Call& call) {
  const auto kernel = [](const std::optional<Tensor>& x) {
    return x ? kernels::KeyQueryKernel{floats(x), x->size(1), x->size(2)}
             : kernels::KeyQueryKernel{};
  };
  const auto mix = [](const std::optional<Tensor>& x) {
    return x ? kernels::HeadMix{floats(x), x->size(1)} : kernels::HeadMix{};
  };
  return {.kernel_before = kernel(call[kKernelBefore]),
          .kernel_after = kernel(call[kKernelAfter]),
          .mix_before = mix(call[kMixBefore]),
          .mix_after = mix(call[kMixAfter]),
          .equation = call.eq4 ? kernels::KernelEquation::eq4 : kernels::KernelEquation::eq5,
          .renormalise = call.renormalise};
}

kernels::MemberMask member_mask(const Call& call) {
  if (!call[kMembers]) return {};
  const int64_t queries = call.q.size(2), keys = call.k.size(2);
  const auto* bits = static_cast<const int64_t*>(call[kMembers]->const_data_ptr());
  return {.query = bits + (keys - queries),
          .key = bits,
          .query_batch = keys,
          .key_batch = keys,
          .window = call.near,
          .sinks = call.near_sinks};
}

kernels::FocusGroups focus_groups(const Call& call) {
  return {.rule = {.mask = mask_rule(call),
                   .groups = call.groups,
                   .window = call.near,
                   .sinks = call.near_sinks},
          .members = static_cast<const uint64_t*>(call[kMembers]->const_data_ptr()),
          .most_groups = call.most_groups > 0 ? call.most_groups : call.groups};
}

}  // namespace fovea::python
