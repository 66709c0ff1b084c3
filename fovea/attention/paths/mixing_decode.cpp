// The decoding path of stages that join pairs: few queries, whose keys are read where they lie.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "fovea/attention/backend.h"
#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/paths/mixing.h"
#include "fovea/attention/places.h"
#include "fovea/attention/plan.h"

namespace fovea {
namespace {

template <class T>
void decode_mixed(const AttentionCall& call, const FusedOperands& x, const AttentionResult& to,
                  const at::Tensor& out) {
  const auto fused = fused_call(call);
  const auto rows = call.made.get([&] { return rows_seen(call); });
  const MixingOperands mixing = mixing_operands(call.tensors);
  const at::Tensor members = contiguous_members(call);
  backend_for(x.q).run(
      kernels::MixingDecode<T>{.sizes = sizes_of(x),
                               .rule = rule_of(*fused, x),
                               .mixing = mixing_rule(call.spec, mixing),
                               .members = member_mask(call.spec.focus, members, call.q.size(2)),
                               .rows = *rows,
                               .results = out.size(2),
                               .q = rows_of<T>(x.q),
                               .k = rows_of<T>(x.k),
                               .v = rows_of<T>(x.v),
                               .out = writable_rows_of<T>(out),
                               .lse = to.lse_bht.mutable_data_ptr<float>()});
}

AttentionResult run_mixing_decode(const AttentionCall& call) {
  const at::NoGradGuard no_gradient;
  FusedOperands x = fused_operands(call);
  for (at::Tensor* t : {&x.q, &x.k, &x.v}) *t = contiguous_rows(*t);
  const int64_t b = x.q.size(0), h = x.q.size(1),
                results = call.last_queries > 0 ? call.last_queries : x.q.size(2);
  const at::Tensor out = empty_by_token({b, h, results, x.v.size(3)}, x.q.options());
  AttentionResult result;
  result.lse_bht = at::empty({b, h, results}, x.q.options().dtype(at::kFloat));
  with_kernel_type(x.q.scalar_type(), "attention", [&]<class T>(T) {
    decode_mixed<T>(call, x, result, out);
    result.path.isa = backend_for(x.q).isa<kernels::MixingDecode<T>>();
  });
  result.out_bhte = out.to(call.q.scalar_type());
  result.path.plan = plan_name(call.spec, {}, call.k.size(2));
  result.path.reason = {.kind = PathReason::Kind::few_queries};
  return result;
}

std::optional<std::string> why_not_mixing_decode(const AttentionCall& call) {
  if (auto why = why_not_mixing(call)) return why;
  if (auto why = why_not_in_place(call)) return why;
  if (auto why = why_not_mixed_rows(backend_for(call.q), call.spec, call.q.size(2))) return why;
  if (call.made.get([&] { return rows_seen(call); })->empty())
    return "a row sees more than two ranges of keys";
  return std::nullopt;
}

}  // namespace

AttentionPath mixing_decode_path() {
  return {.name = PathName::fused,
          .runs_on = has_kernels<kernels::MixingDecode>,
          .why_not = why_not_mixing_decode,
          .run = run_mixing_decode};
}

}  // namespace fovea
