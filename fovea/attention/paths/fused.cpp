// The pointwise path: from tensors to the kernels and back, forward and backward.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "fovea/attention/backend.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/paths/fused_call.h"

namespace fovea {
namespace {

/// What every kernel reads, forward and backward.
template <class T, class Problem>
void set_inputs(Problem& problem, const FusedCall& call, const FusedOperands& x) {
  problem.sizes = sizes_of(x);
  problem.rule = rule_of(call, x);
  problem.q = rows_of<T>(x.q);
  problem.k = rows_of<T>(x.k);
  problem.v = rows_of<T>(x.v);
}

// Few keys of a call, which have its scale.
template <class T, class Problem, class Few>
void set_few(Few& few, const Problem& problem, const FusedFew& given) {
  few.sizes = problem.sizes;
  few.sizes.keys = std::ssize(given.key_rows);
  few.q = rows_of<T>(given.q);
  few.k = rows_of<T>(given.k);
  few.v = rows_of<T>(given.v);
  few.key_rows = given.key_rows.data();
  few.seen = {given.seen.data(), given.set_bh.data()};
  few.scale = problem.rule.scale;
  few.tau = problem.rule.tau;
  few.soft_cap = problem.rule.soft_cap;
  few.lse = problem.lse;
  few.out = problem.out;
  few.out_rest = problem.out_rest;
}

template <class T>
void run_forward(const FusedCall& call, const FusedOperands& x, const FusedFew* few,
                 const at::Tensor& out, const at::Tensor& rest, const at::Tensor& lse,
                 const at::Tensor& stats) {
  const auto run_fused = [&](auto problem) {
    set_inputs<T>(problem, call, x);
    problem.out = writable_rows_of<T>(out);
    if (rest.defined()) problem.out_rest = writable_rows_of<T>(rest);
    problem.lse = lse.mutable_data_ptr<float>();
    problem.stats = floats_into(stats);
    kernels::FewKeys<T> joined;
    if constexpr (requires { problem.few; }) {
      if (few != nullptr) {
        set_few<T>(joined, problem, *few);
        problem.few = &joined;
      }
    }
    backend_for(x.q).run(problem);
  };
  if (!call.grouped) {
    kernels::AttentionForward<T> pointwise;
    pointwise.visits = call.visits->visits;
    return run_fused(pointwise);
  }
  kernels::GroupedForward<T> grouped;
  grouped.plans = *call.grouped;
  run_fused(grouped);
}

FusedGradients fused_gradients(const FusedOperands& x) {
  const auto options = x.q.options().dtype(at::kFloat);
  const int64_t b = x.q.size(0), h = x.q.size(1);
  FusedGradients g{.q = empty_by_token(x.q.sizes().vec(), x.q.options()),
                   .k = empty_by_token(x.k.sizes().vec(), x.k.options()),
                   .v = empty_by_token(x.v.sizes().vec(), x.v.options())};
  if (x.tau_bt.numel() > 0) g.tau_bht = at::empty({b, h, x.q.size(2)}, options);
  if (x.bias_hn.numel() > 0) g.bias_bhn = at::empty({b, h, x.bias_hn.size(1)}, options);
  if (x.sink_h.numel() > 0) g.sink_bh = at::empty({b, h}, options);
  if (x.gate_bsk.numel() > 0) {
    const int64_t columns = x.gate_bsk.size(2);
    g.gate_bhtk = at::empty({b, h, x.q.size(2), columns}, options);
    g.gate_bgsk = at::empty({b, x.k.size(1), x.k.size(2), columns}, options);
  }
  return g;
}

template <class T>
kernels::FewKeysGradient<T> few_problem(const kernels::AttentionBackward<T>& problem,
                                        const FusedFew& few, const FusedFewGradients& g) {
  kernels::FewKeysGradient<T> joined;
  set_few<T>(joined, problem, few);
  joined.dout = problem.dout;
  joined.dlse = problem.dlse;
  joined.dk = g.k.mutable_data_ptr<float>();
  joined.dv = g.v.mutable_data_ptr<float>();
  joined.queries = few.own_queries ? kernels::FewQueries::own : kernels::FewQueries::shared;
  joined.dq = few.own_queries ? writable_rows_of<T>(g.q) : problem.dq;
  joined.dtau = few.own_queries ? floats_into(g.tau_bht) : problem.dtau;
  return joined;
}

template <class T>
void run_backward(const FusedCall& call, const FusedOperands& x, const FusedResults& r,
                  const FusedGradients& g, const FusedFew* few,
                  const FusedFewGradients* few_gradients) {
  const auto run_fused = [&](auto problem) {
    set_inputs<T>(problem, call, x);
    problem.out = rows_of<T>(r.out);
    if (r.rest.defined() && r.rest.numel() > 0) problem.out_rest = rows_of<T>(r.rest);
    problem.dout = rows_of<T>(r.dout);
    problem.lse = r.lse.const_data_ptr<float>();
    problem.dlse = r.dlse.defined() ? r.dlse.const_data_ptr<float>() : nullptr;
    problem.dq = writable_rows_of<T>(g.q);
    problem.dk = writable_rows_of<T>(g.k);
    problem.dv = writable_rows_of<T>(g.v);
    problem.dtau = floats_into(g.tau_bht);
    problem.dsink = floats_into(g.sink_bh);
    kernels::FewKeysGradient<T> joined;
    if constexpr (requires { problem.few; }) {
      if (few != nullptr) {
        joined = few_problem(problem, *few, *few_gradients);
        problem.few = &joined;
      }
    }
    backend_for(x.q).run(problem);
  };
  if (call.grouped) {
    kernels::GroupedBackward<T> grouped;
    grouped.plans = *call.grouped;
    return run_fused(grouped);
  }
  kernels::AttentionBackward<T> pointwise;
  pointwise.visits = call.visits->visits;
  pointwise.dbias = floats_into(g.bias_bhn);
  pointwise.dgate_query = floats_into(g.gate_bhtk);
  pointwise.dgate_key = floats_into(g.gate_bgsk);
  run_fused(pointwise);
}

// Weights are multiplied with at least this much; what a row sees must not vanish.
constexpr double kSmallestEpsilon = 1e-12;

}  // namespace

FusedOperands FusedOperands::of(const Operation::Tensors& list) {
  return {contiguous_rows(list[0]),
          contiguous_rows(list[1]),
          contiguous_rows(list[2]),
          list[3],
          list[4],
          list[5],
          list[6],
          list[7]};
}

Operation::Tensors FusedCall::forward(const Tensors& inputs, Tensors& kept) const {
  const FusedOperands x = FusedOperands::of(inputs);
  const at::Tensor& q = x.q;
  const at::Tensor out =
      empty_by_token({q.size(0), q.size(1), q.size(2), x.v.size(3)}, q.options());
  const at::Tensor lse =
      at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  const at::Tensor rest = rest_like(out, keeps_rest);
  at::Tensor stats;
  if (want_stats) stats = at::empty({q.size(0), q.size(1), q.size(2), 3}, lse.options());
  with_kernel_type(q.scalar_type(), "attention",
                   [&]<class T>(T) { run_forward<T>(*this, x, nullptr, out, rest, lse, stats); });
  kept = inputs;
  kept.insert(kept.end(), {out, lse, rest});
  return want_stats ? Tensors{out, lse, stats} : Tensors{out, lse};
}

Operation::Tensors FusedCall::backward(const Tensors& kept, const Tensors& grads,
                                       const std::vector<bool>& /*wanted*/) const {
  const FusedOperands x = FusedOperands::of(kept);
  return fused_backward(*this, x, kept[kFusedOperands], kept[kFusedOperands + 1], grads[0],
                        grads[1], kept[kFusedOperands + 2])
      .list();
}

at::Tensor rest_like(const at::Tensor& out, bool wants_gradient) {
  const bool rounds = out.scalar_type() == at::kBFloat16;
  return wants_gradient && rounds ? empty_by_token(out.sizes().vec(), out.options()) : at::Tensor();
}

void fused_forward_into(const FusedCall& call, const FusedOperands& x, const FusedFew* few,
                        const at::Tensor& out, const at::Tensor& rest, const at::Tensor& lse) {
  with_kernel_type(x.q.scalar_type(), "attention",
                   [&]<class T>(T) { run_forward<T>(call, x, few, out, rest, lse, at::Tensor()); });
}

void fused_backward_into(const FusedCall& call, const FusedOperands& x, const FusedResults& r,
                         const FusedGradients& g, const FusedFew* few,
                         const FusedFewGradients* few_gradients) {
  with_kernel_type(x.q.scalar_type(), "attention",
                   [&]<class T>(T) { run_backward<T>(call, x, r, g, few, few_gradients); });
}

FusedResults results_of(const at::Tensor& out, const at::Tensor& lse,
                        const Operation::Tensors& grads, const at::Tensor& rest) {
  const at::Tensor &dout = grads[0], &dlse = grads[1];
  return {
      .out = out,
      .lse = lse,
      .dout = dout.defined() ? contiguous_rows(dout.to(out.scalar_type())) : at::zeros_like(out),
      .dlse = dlse.defined() ? dlse.to(at::kFloat).contiguous() : dlse,
      .rest = rest};
}

FusedOperands fused_backward(const FusedCall& call, const FusedOperands& given,
                             const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout,
                             const at::Tensor& dlse, const at::Tensor& rest) {
  const FusedOperands x = FusedOperands::of(given.list());
  const FusedGradients g = fused_gradients(x);
  fused_backward_into(call, x, results_of(out, lse, {dout, dlse}, rest), g);
  const auto summed = [](const at::Tensor& t, int64_t dim) { return t.defined() ? t.sum(dim) : t; };
  return {g.q,
          g.k,
          g.v,
          summed(g.tau_bht, 1),
          summed(g.bias_bhn, 0),
          summed(g.sink_bh, 0),
          summed(g.gate_bhtk, 1),
          summed(g.gate_bgsk, 1)};
}

std::optional<std::string> why_not_kernels(const AttentionCall& call) {
  const AttentionSpec& spec = call.spec;
  for (const StageUse& use : call.stages())
    if (use.why_not_kernels)
      return fmt::format("stage {}: {}", stage_of(use.stage).name, *use.why_not_kernels);
  const at::ScalarType dtype = call.q.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf)
    return fmt::format("no fused kernel for {}", at::toString(dtype));
  const kernels::Backend* const backend = backend_of(call.q.device());
  if (backend == nullptr) return "no kernels for this device";
  const auto why = with_kernel_type(kernel_dtype(dtype), "attention", [&]<class T>(T) {
    return backend->why_not(kernels::AttentionForward<T>{.sizes = sizes_of(spec)});
  });
  if (why)
    return fmt::format("no fused kernel for these widths: {}; got {} and {}", *why, spec.head_dim,
                       spec.value_width());
  return std::nullopt;
}

// Reason of a backend that lacks settings or masks, which the CPU's has all of; asked with the
// plan's visits.
std::optional<std::string> why_not_settings(const AttentionCall& call) {
  if (call.q.is_cpu()) return std::nullopt;
  const kernels::Backend& backend = backend_for(call.q);
  if (call.q.numel() == 0 || call.k.size(2) == 0) return "nothing to compute";
  const FusedOperands x{.q = call.q, .k = call.k, .v = call.v};
  const auto visits = call.made.get([&] { return visits_of(call); });
  return with_kernel_type(kernel_dtype(call.q.scalar_type()), "attention", [&]<class T>(T) {
    float given_stats = 0.0f;
    return backend.why_not(
        kernels::AttentionForward<T>{.sizes = sizes_of(x),
                                     .rule = asked_rule(call),
                                     .visits = (*visits)->visits,
                                     .stats = call.context.want_stats ? &given_stats : nullptr});
  });
}

std::optional<std::string> why_not_gate(const FocusSpec& focus) {
  if (focus.gate == FocusSpec::Gate::straight_through &&
      3 * focus.groups > kernels::kMostGateColumns)
    return fmt::format(
        "no fused kernel for focus straight_through with more than {} groups; got {}",
        kernels::kMostGateColumns / 3, focus.groups);
  if (focus.active() && focus.epsilon < kSmallestEpsilon)
    return fmt::format("focus.epsilon below {} leaves float32's range", kSmallestEpsilon);
  return std::nullopt;
}

std::optional<std::string> why_not_pointwise(const AttentionCall& call) {
  const FocusSpec& focus = call.spec.focus;
  if (focus.gate == FocusSpec::Gate::hard)
    return fmt::format("no fused kernel for focus {}", enum_name(focus.gate));
  if (auto why = why_not_gate(focus)) return why;
  if (auto why = why_not_kernels(call)) return why;
  return why_not_settings(call);
}

std::shared_ptr<const BatchVisits> visits_of(const AttentionCall& call) {
  const std::shared_ptr<PlanCache>& plans = call.context.plans;
  const TileSizes tiles = backend_for(call.q).tile_sizes();
  return plans ? plans->visits(call.spec, call.context, call.shape(), tiles)
               : make_batch_visits(call.spec, call.context, call.shape(), tiles);
}

namespace {

AttentionResult apply(const AttentionCall& given, c10::intrusive_ptr<FusedCall> call) {
  const bool want_stats = call->want_stats;
  call->keeps_rest = given.wants_gradient();
  const Operation::Tensors outputs = run_operation(std::move(call), fused_operands(given).list());
  AttentionResult result = kernel_result(outputs[0], outputs[1], given.q.scalar_type());
  if (want_stats) {
    const at::Tensor means = outputs[2].mean(at::IntArrayRef{0, 2});
    result.stats = {means.select(1, 0), means.select(1, 1), means.select(1, 2)};
  }
  return result;
}

}  // namespace

AttentionResult run_kernels(const AttentionCall& given, std::shared_ptr<const BatchVisits> visits) {
  auto call = fused_call(given);
  call->visits = std::move(visits);
  return apply(given, std::move(call));
}

AttentionResult run_kernels(const AttentionCall& given,
                            std::shared_ptr<const GroupedPlanList> grouped) {
  auto call = fused_call(given);
  call->grouped = std::move(grouped);
  return apply(given, std::move(call));
}

AttentionPath fused_path() {
  return {.name = PathName::fused,
          .runs_on = has_kernels<kernels::AttentionForward>,
          .key_rule = KeyRule::mask,
          .why_not = why_not_pointwise,
          .run = [](const AttentionCall& call) {
            const std::shared_ptr<const BatchVisits> visits =
                *call.made.get([&] { return visits_of(call); });
            AttentionResult result = run_kernels(call, visits);
            result.path.plan = visits->name;
            result.path.reason = {.kind = PathReason::Kind::pointwise};
            return result;
          }};
}

}  // namespace fovea
