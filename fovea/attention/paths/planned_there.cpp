// Hard Focus by a device's kernels that plan for themselves: memberships stay there (spec 11.4).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/attention/backend.h"
#include "fovea/attention/paths/grouped.h"

namespace fovea {
namespace {

struct PlannedThere : Operation {
  float scale = 1.0f;
  kernels::FocusGroups groups;  ///< without the pointer
  at::Tensor members_bs;
  bool keeps_rest = false;

  Tensors forward(const Tensors& inputs, Tensors& kept) const override {
    const at::Tensor q = contiguous_rows(inputs[0]), k = contiguous_rows(inputs[1]),
                     v = contiguous_rows(inputs[2]);
    const at::Tensor out =
        empty_by_token({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    const at::Tensor lse =
        at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
    const at::Tensor rest = rest_like(out, keeps_rest);
    with_kernel_type(q.scalar_type(), "attention", [&]<class T>(T) {
      auto problem = problem_of<kernels::FocusForward<T>, T>(q, k, v);
      problem.out = writable_rows_of<T>(out);
      if (rest.defined()) problem.out_rest = writable_rows_of<T>(rest);
      problem.lse = lse.mutable_data_ptr<float>();
      backend_for(q).run(problem);
    });
    kept = {q, k, v, out, lse, rest};
    return {out, lse};
  }

  Tensors backward(const Tensors& kept, const Tensors& grads,
                   const std::vector<bool>& /*wanted*/) const override {
    const at::Tensor &q = kept[0], &k = kept[1], &v = kept[2];
    const FusedResults r = results_of(kept[3], kept[4], grads, kept[5]);
    const at::Tensor dq = empty_by_token(q.sizes().vec(), q.options()),
                     dk = empty_by_token(k.sizes().vec(), k.options()),
                     dv = empty_by_token(v.sizes().vec(), v.options());
    with_kernel_type(q.scalar_type(), "attention", [&]<class T>(T) {
      auto problem = problem_of<kernels::FocusBackward<T>, T>(q, k, v);
      problem.out = rows_of<T>(r.out);
      if (r.rest.defined() && r.rest.numel() > 0) problem.out_rest = rows_of<T>(r.rest);
      problem.dout = rows_of<T>(r.dout);
      problem.lse = r.lse.const_data_ptr<float>();
      problem.dlse = r.dlse.defined() ? r.dlse.const_data_ptr<float>() : nullptr;
      problem.dq = writable_rows_of<T>(dq);
      problem.dk = writable_rows_of<T>(dk);
      problem.dv = writable_rows_of<T>(dv);
      backend_for(q).run(problem);
    });
    return {dq, dk, dv};
  }

 private:
  template <class Problem, class T>
  Problem problem_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
    Problem problem;
    problem.sizes = sizes_of(FusedOperands{.q = q, .k = k, .v = v});
    problem.rule.scale = scale;
    problem.groups = groups;
    problem.groups.members =
        reinterpret_cast<const uint64_t*>(members_bs.const_data_ptr<int64_t>());
    problem.q = rows_of<T>(q);
    problem.k = rows_of<T>(k);
    problem.v = rows_of<T>(v);
    return problem;
  }
};

kernels::FocusGroups groups_of(const AttentionSpec& spec) {
  return {.rule = grouped_rule(spec), .most_groups = spec.focus.top_k};
}

std::optional<std::string> why_not_planned_there(const AttentionCall& call) {
  if (call.spec.focus.gate != FocusSpec::Gate::hard) return "no groups";
  if (!has_default_places(call.context)) return "the kernels of hard Focus take one document a row";
  if (call.q.numel() == 0) return "nothing to compute";
  if (auto why = why_not_kernels(call)) return why;
  const FusedOperands x{.q = call.q, .k = call.k, .v = call.v};
  return with_kernel_type(kernel_dtype(call.q.scalar_type()), "attention", [&]<class T>(T) {
    return backend_for(call.q).why_not(kernels::FocusForward<T>{
        .sizes = sizes_of(x), .rule = asked_rule(call), .groups = groups_of(call.spec)});
  });
}

AttentionResult run_planned_there(const AttentionCall& call) {
  auto operation = c10::make_intrusive<PlannedThere>();
  operation->scale = static_cast<float>(call.spec.logit_scale());
  operation->groups = groups_of(call.spec);
  operation->members_bs = call.tensors.members_bs.contiguous();
  operation->keeps_rest = call.wants_gradient();
  const Operation::Tensors outputs = run_operation(std::move(operation), {call.q, call.k, call.v});
  AttentionResult result = kernel_result(outputs[0], outputs[1], call.q.scalar_type());
  result.path.plan.add(PlanWord::groups);
  return result;
}

}  // namespace

AttentionPath planned_there_path() {
  return {.name = PathName::grouped,
          .runs_on = has_kernels<kernels::FocusForward>,
          .key_rule = KeyRule::groups,
          .why_not = why_not_planned_there,
          .run = run_planned_there};
}

}  // namespace fovea
