// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/differential.h"

#include <ATen/ATen.h>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/head_output.h"
#include "fovea/attention/pipeline.h"
#include "fovea/base/error.h"

namespace fovea {

at::Tensor differential_lambda(const AttentionSpec& spec, const AttentionTensors& tensors) {
  const at::Tensor rows = tensors.lambda_4d.to(accumulate_type(tensors.lambda_4d.scalar_type()));
  const auto term = [&](int64_t pair) {
    return at::exp((rows.select(0, 2 * pair) * rows.select(0, 2 * pair + 1)).sum());
  };
  return term(0) - term(1) + lambda_init(spec.depth);
}

namespace {

// Heads 2h + map of x, whose heads are at `axis`.
at::Tensor map_heads(const at::Tensor& x, int64_t map, int64_t axis = 1) {
  return x.unflatten(axis, {x.size(axis) / 2, 2}).select(axis + 1, map);
}

// The inputs of the stages that belong to heads 2h + map.
AttentionTensors map_tensors(const AttentionTensors& tensors, int64_t map) {
  AttentionTensors half = tensors;
  half.lambda_4d = half.head_gain_e = half.gate_weight = half.gate_bias = at::Tensor();
  for (const Mechanism* mechanism : mechanisms())
    for (const TensorSlot& slot : mechanism->tensors)
      if (at::Tensor& x = half.*slot.member; slot.head_axis >= 0 && x.defined())
        x = map_heads(x, map, slot.head_axis);
  return half;
}

}  // namespace

AttentionCall differential_map(const AttentionCall& call, int64_t map) {
  AttentionSpec spec = call.spec;
  spec.value_dim = call.spec.value_width();
  spec.differential = false;
  spec.heads /= 2;
  spec.kv_heads /= 2;
  spec.head_output = {};
  return {.spec = std::move(spec),
          .q = map_heads(call.q, map),
          .k = map_heads(call.k, map),
          .v = call.v,
          .tensors = map_tensors(call.tensors, map),
          .context = call.context};
}

AttentionStats both_maps(const AttentionStats& a, const AttentionStats& b) {
  const auto both = [](const at::Tensor& first, const at::Tensor& second) {
    return first.defined() ? at::stack({first, second}, 1).flatten() : first;
  };
  return {both(a.entropy_h, b.entropy_h), both(a.largest_weight_h, b.largest_weight_h),
          both(a.sink_mass_h, b.sink_mass_h)};
}

AttentionResult differential_attention(
    const AttentionCall& call, const std::function<AttentionResult(const AttentionCall&)>& attend) {
  const AttentionResult first = attend(differential_map(call, 0)),
                        second = attend(differential_map(call, 1));
  const at::ScalarType dtype = call.q.scalar_type(), wide = accumulate_type(dtype);
  const at::Tensor lambda = differential_lambda(call.spec, call.tensors).to(wide);
  AttentionResult result;
  const at::Tensor difference = first.out_bhte.to(wide) - lambda * second.out_bhte.to(wide);
  result.out_bhte = head_output(call.spec, difference, call.tensors).to(dtype);
  if (first.lse_bht.defined())
    result.lse_bht = at::stack({first.lse_bht, second.lse_bht}, 2).flatten(1, 2);
  result.stats = both_maps(first.stats, second.stats);
  result.path = second.path;
  return result;
}

namespace {

void check_differential(const AttentionSpec& s) {
  if (!s.differential) return;
  require<ConfigError>(s.heads % 2 == 0 && s.kv_heads % 2 == 0, kSpecPlace,
                       "differential needs pairs of query and of key heads; got {} heads and {} "
                       "kv_heads",
                       s.heads, s.kv_heads);
}

std::vector<StageUse> differential_uses(const AttentionSpec& spec) {
  if (!spec.differential) return {};
  return {{.stage = StageId::values,
           .setting = fmt::format("differential {:.4g}", lambda_init(spec.depth))}};
}

constexpr TensorSlot kDifferentialTensors[] = {
    {.name = "lambda",
     .member = &AttentionTensors::lambda_4d,
     .sizes = [](const AttentionSpec& spec, const CallShape&) -> Sizes {
       if (!(spec.differential)) return std::nullopt;
       return std::vector<int64_t>{4, spec.head_dim};
     },
     .setting =
         [](const AttentionSpec& spec) {
           return fmt::format("differential {}", spec.differential);
         }},
};

constexpr MechanismSetting kDifferentialSettings[] = {
    {"differential", [](AttentionSpec& s) { s.differential = true; }},
};

}  // namespace

const Mechanism& differential_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "differential",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.boolean({"differential",
                       "pairs of query and key heads are two maps; one minus lambda the other"},
                      spec.differential);
          },
      .check = check_differential,
      .uses = differential_uses,
      .tensors = kDifferentialTensors,
      .settings = kDifferentialSettings,
  };
  return mechanism;
}

}  // namespace fovea
