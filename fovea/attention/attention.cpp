// attention(): the first path of the list that can run the call.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/attention.h"

#include <optional>
#include <span>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/differential.h"
#include "fovea/attention/mechanisms/head_output.h"
#include "fovea/attention/paths/path.h"
#include "fovea/attention/pipeline.h"
#include "fovea/attention/stages.h"
#include "fovea/attention/visible_keys.h"
#include "fovea/base/error.h"
#include "fovea/runtime/operator_profile.h"

namespace fovea {
namespace {

[[noreturn]] void refuse_fused(const AttentionSpec& spec, const PathReason& reason) {
  fail<UnsupportedError>("attention",
                         "path fused has no kernel for this call ({}): {}; use path automatic or "
                         "reference",
                         describe_pipeline(spec), reason.text());
}

// What every path leaves to its caller: stage 10 after the values, telemetry, name and reason.
AttentionResult completed(AttentionResult result, const AttentionCall& call,
                          const AttentionPath& path, PathReason why) {
  result.out_bhte = head_output(call.spec, result.out_bhte, call.tensors).to(call.q.scalar_type());
  if (call.context.want_stats && !result.stats.entropy_h.defined()) result.stats = stats_of(call);
  if (result.path.name == PathName::none) result.path.name = path.name;
  if (result.path.reason.kind == PathReason::Kind::none) result.path.reason = std::move(why);
  return result;
}

/// FLOPs of the two products over the pairs that the masks allow.
double product_flops(const AttentionCall& call) {
  const auto [batch, queries, keys, dtype, device] = call.shape();
  const at::Tensor& places = call.context.query_positions_bt;
  double pairs = 0.0;
  if (places.defined()) {
    const at::Tensor host = places.to(at::kCPU, at::kLong).contiguous();
    for (const int64_t i : std::span(host.const_data_ptr<int64_t>(), size_t(host.numel())))
      pairs += visible_keys(call.spec, i, i + 1);
  } else {
    for (int64_t i = keys - queries; i < keys; ++i)
      pairs += static_cast<double>(batch) * visible_keys(call.spec, i, keys);
  }
  return 2.0 * pairs * static_cast<double>(call.q.size(1) * (call.q.size(3) + call.v.size(3)));
}

}  // namespace

AttentionResult run_call(const AttentionCall& call, Path wanted) {
  PathReason why{.kind = PathReason::Kind::requested};
  for (const AttentionPath& path : attention_paths()) {
    const bool asked = wanted != Path::reference || path.name == PathName::reference;
    if (!asked || !path.serves(call)) continue;
    if (wanted == Path::fused && !is_ours(path.name)) break;
    std::optional<std::string> reason = path.reason_against(call);
    if (!reason) return completed(path.run(call), call, path, std::move(why));
    why = {.kind = PathReason::Kind::refused, .detail = std::move(*reason)};
  }
  refuse_fused(call.spec, why);
}

AttentionResult run_checked(AttentionCall call, Path path) {
  if (path != Path::reference) call = without_neutral_mechanisms(in_mask_terms(std::move(call)));
  if (!call.spec.differential) return run_call(call, path);
  return differential_attention(call,
                                [path](const AttentionCall& map) { return run_call(map, path); });
}

std::span<const std::string_view> enum_names(Path) {
  static constexpr std::string_view names[] = {"automatic", "fused", "reference"};
  return names;
}

AttentionResult attention(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const AttentionTensors& tensors,
                          const AttentionContext& context, Path path) {
  AttentionCall call = checked_call(spec, q, k, v, tensors, context);
  const OperatorScope scope(OperatorKind::attention, [&] { return product_flops(call); });
  return run_checked(std::move(call), path);
}

AttentionResult reference_attention(const AttentionSpec& spec, const at::Tensor& q,
                                    const at::Tensor& k, const at::Tensor& v,
                                    const AttentionTensors& tensors,
                                    const AttentionContext& context) {
  return attention(spec, q, k, v, tensors, context, Path::reference);
}

}  // namespace fovea
