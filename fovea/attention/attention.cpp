// attention(): path choice. First the fused kernels of ours; where they have none for a dtype,
// width or device, torch's scaled_dot_product_attention, taken only where its semantics are exactly
// ours.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/attention.h"

#include <ATen/ATen.h>

#include <optional>

#include "fovea/attention/isolation.h"
#include "fovea/attention/mechanisms/differential.h"
#include "fovea/attention/mechanisms/focus.h"
#include "fovea/attention/mechanisms/head_output.h"
#include "fovea/attention/paths/fused.h"
#include "fovea/attention/paths/grouped.h"
#include "fovea/attention/paths/listed.h"
#include "fovea/attention/paths/sdpa.h"
#include "fovea/attention/pipeline.h"
#include "fovea/attention/plan.h"
#include "fovea/attention/stages.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

// Why torch's operation cannot give exactly our result; "" where it can. The plan's own reasons
// come later.
std::string beyond_sdpa(const AttentionSpec& spec, const at::Tensor& q,
                        const AttentionContext& context) {
  for (const Stage& stage : attention_stages()) {
    if (std::string reason = stage.beyond_sdpa(spec); !reason.empty())
      return fmt::format("stage {}: {}", stage.name, reason);
  }
  if (spec.dropout > 0.0 && context.training) return "stage softmax: dropout is counter-based";
  const bool reduced = accumulate_type(q.scalar_type()) != q.scalar_type();
  if (spec.bias.kind == BiasSpec::Kind::alibi && reduced && !q.device().is_cpu())
    return "stage gate_and_bias: there alibi would be rounded to the dtype of q";
  if (context.want_lse && !q.device().is_cpu()) return "lse is wanted, which only the CPU gives";
  if (spec.sink_logit && !q.device().is_cpu())
    return "stage softmax: sink_logit needs lse, which only the CPU gives";
  return "";
}

// The call by the grouped kernels, or why not.
std::optional<AttentionResult> try_grouped(const AttentionSpec& spec, const at::Tensor& q,
                                           const at::Tensor& k, const at::Tensor& v,
                                           const AttentionTensors& tensors,
                                           const AttentionContext& context, std::string& why_not) {
  why_not = beyond_grouped(spec, q, context);
  if (!why_not.empty()) return std::nullopt;
  std::optional<AttentionResult> result = grouped_decode(spec, q, k, v, tensors, context);
  if (!result) {
    GroupedPlans plans = make_grouped_plans(spec, tensors.members_bs, q.size(2), context);
    why_not = plans.reason;
    if (!why_not.empty()) return std::nullopt;
    result = grouped_attention(spec, std::move(plans), q, k, v, tensors, context);
  }
  result->out_bhte = head_output(spec, result->out_bhte, tensors);
  return result;
}

[[noreturn]] void refuse_fused(const AttentionSpec& spec, const std::string& reason) {
  fail<UnsupportedError>("attention",
                         "path fused has no kernel for this call ({}): {}; use path "
                         "automatic or reference",
                         describe_pipeline(spec), reason);
}

}  // namespace

std::span<const std::string_view> enum_names(Path) {
  static constexpr std::string_view names[] = {"automatic", "fused", "reference"};
  return names;
}

AttentionResult attention(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const AttentionTensors& tensors,
                          const AttentionContext& context, Path path) {
  check_inputs(spec, q, k, v, tensors, context);
  if (spec.differential) {
    return differential_attention(
        spec, q, k, v, tensors,
        [&](const AttentionSpec& map, const at::Tensor& map_q, const at::Tensor& map_k,
            const at::Tensor& map_v, const AttentionTensors& inputs) {
          return attention(map, map_q, map_k, map_v, inputs, context, path);
        });
  }
  if (spec.focus.active() && path != Path::reference &&
      focus_is_neutral(spec.focus, context, k.size(2))) {
    AttentionSpec plain = spec;
    plain.focus = {};
    AttentionTensors inputs = tensors;
    for (at::Tensor* x : {&inputs.groups_bsk, &inputs.members_bs, &inputs.focus_strength})
      *x = at::Tensor();
    return attention(plain, q, k, v, inputs, context, path);
  }
  const auto reference = [&](std::string reason) {
    AttentionResult result = reference_attention(spec, q, k, v, tensors, context);
    result.path.reason = std::move(reason);
    if (context.want_stats) result.stats = attention_stats(spec, q, k, tensors, context);
    return result;
  };
  if (path == Path::reference) return reference("requested");
  const CallShape shape{q.size(0), q.size(2), k.size(2), q.scalar_type(), q.device()};
  std::string no_kernel = spec.own.active()
                              ? fmt::format("'{}' is a stage of one's own", spec.own.name)
                              : beyond_fused(spec, q);
  if (spec.focus.gate == FocusSpec::Gate::hard && !spec.own.active()) {
    std::optional<AttentionResult> result = try_grouped(spec, q, k, v, tensors, context, no_kernel);
    if (result) return *result;
  }
  const bool listed = spec.routing.active() || spec.blocks.active();
  if (listed && !spec.own.active()) {
    std::optional<AttentionResult> result =
        listed_attention(spec, q, k, v, tensors, context, no_kernel);
    if (result) {
      result->out_bhte = head_output(spec, result->out_bhte, tensors);
      return *result;
    }
  }
  if (no_kernel.empty()) {
    std::optional<AttentionResult> result = decode_attention(spec, q, k, v, tensors, context);
    if (!result) {
      result = fused_attention(spec,
                               context.plans ? context.plans->visits(spec, context, shape)
                                             : make_visit_plan(spec, context, shape),
                               q, k, v, tensors, context);
    }
    result->out_bhte = head_output(spec, result->out_bhte, tensors);
    return *result;
  }
  if (path == Path::fused) refuse_fused(spec, no_kernel);
  if (spec.focus.gate == FocusSpec::Gate::hard || listed) return reference(std::move(no_kernel));
  if (std::string reason = beyond_sdpa(spec, q, context); !reason.empty())
    return reference(std::move(reason));
  if (shape.batch == 0 || shape.queries == 0) return reference("nothing to compute");
  const auto plan =
      context.plans ? context.plans->get(spec, context, shape) : make_plan(spec, context, shape);
  if (plan->empty_rows) return reference("some rows have no allowed key");
  AttentionResult result = sdpa_attention(spec, *plan, q, k, v, tensors, context.want_lse);
  if (q.device().is_cpu() && !all_finite(result.out_bhte))
    return reference(
        "a result is not finite, which torch's operation gives rows that do not see it");
  result.out_bhte = head_output(spec, result.out_bhte, tensors);
  if (context.want_stats) result.stats = attention_stats(spec, q, k, tensors, context);
  result.path = {
      .name = "torch_sdpa", .isa = "", .plan = plan->name, .reason = std::move(no_kernel)};
  return result;
}

}  // namespace fovea
