// From tensors to the grouped kernels and back.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/grouped.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <set>
#include <utility>

#include "fovea/attention/fused_call.h"
#include "fovea/attention/places.h"
#include "fovea/kernels/cpu/grouped.h"

namespace fovea {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What forward and backward share besides tensors.
struct GroupedCall : torch::CustomClassHolder {
  c10::intrusive_ptr<FusedCall> fused;
  std::vector<GroupedPlan> plans;
};

float* target(const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; }

template <class T>
void run_forward(const GroupedCall& call, const FusedOperands& x, const at::Tensor& out,
                 const at::Tensor& lse, const at::Tensor& stats) {
  kernels::run(kernels::GroupedForward<T>{.sizes = sizes_of(x),
                                          .rule = rule_of(*call.fused, x),
                                          .plans = call.plans,
                                          .q = rows_of<T>(x.q),
                                          .k = rows_of<T>(x.k),
                                          .v = rows_of<T>(x.v),
                                          .out = writable_rows_of<T>(out),
                                          .lse = lse.mutable_data_ptr<float>(),
                                          .stats = target(stats)});
}

struct Gradients {
  at::Tensor q, k, v, tau_bht, sink_bh;
};

template <class T>
void run_backward(const GroupedCall& call, const FusedOperands& x, const at::Tensor& out,
                  const at::Tensor& lse, const at::Tensor& dout, const at::Tensor& dlse,
                  const Gradients& g) {
  kernels::run(
      kernels::GroupedBackward<T>{.sizes = sizes_of(x),
                                  .rule = rule_of(*call.fused, x),
                                  .plans = call.plans,
                                  .q = rows_of<T>(x.q),
                                  .k = rows_of<T>(x.k),
                                  .v = rows_of<T>(x.v),
                                  .out = rows_of<T>(out),
                                  .dout = rows_of<T>(dout),
                                  .lse = lse.const_data_ptr<float>(),
                                  .dlse = dlse.defined() ? dlse.const_data_ptr<float>() : nullptr,
                                  .dq = writable_rows_of<T>(g.q),
                                  .dk = writable_rows_of<T>(g.k),
                                  .dv = writable_rows_of<T>(g.v),
                                  .dtau = target(g.tau_bht),
                                  .dsink = target(g.sink_bh)});
}

Gradients backward_pass(const GroupedCall& call, const FusedOperands& x, const at::Tensor& out,
                        const at::Tensor& lse, at::Tensor dout, at::Tensor dlse) {
  const auto options = x.q.options().dtype(at::kFloat);
  const int64_t b = x.q.size(0), h = x.q.size(1);
  Gradients g{.q = empty_by_token(x.q.sizes().vec(), x.q.options()),
              .k = empty_by_token(x.k.sizes().vec(), x.k.options()),
              .v = empty_by_token(x.v.sizes().vec(), x.v.options())};
  if (x.tau_bt.numel() > 0) g.tau_bht = at::empty({b, h, x.q.size(2)}, options);
  if (x.sink_h.numel() > 0) g.sink_bh = at::empty({b, h}, options);
  dout = dout.defined() ? contiguous_rows(dout) : at::zeros_like(out);
  if (dlse.defined()) dlse = dlse.contiguous();
  if (x.q.scalar_type() == at::kBFloat16) {
    run_backward<BFloat16>(call, x, out, lse, dout, dlse, g);
  } else {
    run_backward<float>(call, x, out, lse, dout, dlse, g);
  }
  return g;
}

// Inputs q, k, v, tau [b, t], sink [h] (empty tensors where absent); outputs out, lse and, where
// the call wants telemetry, the numbers of every row [b, h, t, 3].
class GroupedAttention : public torch::autograd::Function<GroupedAttention> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& tau, const at::Tensor& sink,
                               const c10::intrusive_ptr<GroupedCall>& call) {
    const FusedOperands x{
        contiguous_rows(q), contiguous_rows(k), contiguous_rows(v), tau, at::Tensor(), sink};
    const at::Tensor out =
        empty_by_token({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    const at::Tensor lse =
        at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
    at::Tensor stats;
    if (call->fused->want_stats)
      stats = at::empty({q.size(0), q.size(1), q.size(2), 3}, lse.options());
    if (q.scalar_type() == at::kBFloat16) {
      run_forward<BFloat16>(*call, x, out, lse, stats);
    } else {
      run_forward<float>(*call, x, out, lse, stats);
    }
    ctx->save_for_backward({q, k, v, tau, sink, out, lse});
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->set_materialize_grads(false);
    if (!stats.defined()) return {out, lse};
    ctx->mark_non_differentiable({stats});
    return {out, lse, stats};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto s = ctx->get_saved_variables();
    const auto call =
        c10::static_intrusive_pointer_cast<GroupedCall>(ctx->saved_data["call"].toCapsule());
    const FusedOperands x{contiguous_rows(s[0]), contiguous_rows(s[1]),
                          contiguous_rows(s[2]), s[3],
                          at::Tensor(),          s[4]};
    const Gradients g = backward_pass(*call, x, s[5], s[6], grads[0], grads[1]);
    return {g.q,
            g.k,
            g.v,
            g.tau_bht.defined() ? g.tau_bht.sum(1) : at::Tensor(),
            g.sink_bh.defined() ? g.sink_bh.sum(0) : at::Tensor(),
            {}};
  }
};

// Places and memberships of one row of the batch.
struct Row {
  std::vector<TokenPlace> places;
  std::span<const uint64_t> members;
};

std::vector<TokenPlace> places_of(const at::Tensor& positions, const at::Tensor& documents,
                                  int64_t b) {
  const auto pick = [b](const at::Tensor& x) {
    return x.select(0, x.size(0) == 1 ? 0 : b).contiguous();
  };
  const at::Tensor p = pick(positions), d = documents.defined() ? pick(documents) : at::Tensor();
  std::vector<TokenPlace> out(static_cast<size_t>(p.numel()));
  for (size_t n = 0; n < out.size(); ++n)
    out[n] = {d.defined() ? d.const_data_ptr<int64_t>()[n] : 0, p.const_data_ptr<int64_t>()[n]};
  return out;
}

// Telemetry of the plans: what a head visits.
std::string visited(const std::vector<GroupedPlan>& plans) {
  int64_t tiles = 0, all = 0;
  for (const GroupedPlan& plan : plans) {
    tiles += visited_tiles(plan);
    const int64_t blocks = (plan.queries + kQueryBlock - 1) / kQueryBlock;
    for (int64_t n = 0; n < blocks; ++n) {
      const int64_t last = std::min(plan.first_query() + (n + 1) * kQueryBlock, plan.keys);
      all += (last + kVisitTile - 1) / kVisitTile;
    }
  }
  return fmt::format("{} tiles visited, a causal mask has {}", tiles, all);
}

bool queries_are_last_keys(const std::vector<TokenPlace>& queries,
                           const std::vector<TokenPlace>& keys) {
  if (queries.size() > keys.size()) return false;
  const size_t first = keys.size() - queries.size();
  for (size_t n = 0; n < queries.size(); ++n) {
    if (queries[n].position != keys[first + n].position ||
        queries[n].document != keys[first + n].document)
      return false;
  }
  return true;
}

}  // namespace

std::string GroupedPlans::name() const {
  std::set<std::string_view> names;
  for (const GroupedPlan& plan : plans)
    names.insert(enum_names(plan.kind)[static_cast<size_t>(plan.kind)]);
  return fmt::format("{}", fmt::join(names, "+"));
}

GroupedPlans make_grouped_plans(const AttentionSpec& spec, const at::Tensor& members_bs,
                                int64_t queries, const AttentionContext& context,
                                std::optional<GroupedKind> wanted) {
  const int64_t batch = members_bs.size(0), keys = members_bs.size(1);
  GroupedPlans out;
  if (queries > keys) return {.plans = {}, .reason = "some queries are not among the keys"};
  const GroupedRule rule{.mask = spec.mask,
                         .groups = spec.focus.groups,
                         .window = spec.focus.window,
                         .sinks = spec.focus.sinks};
  const at::Tensor members = members_bs.cpu().contiguous();
  const auto* bits = reinterpret_cast<const uint64_t*>(members.const_data_ptr<int64_t>());
  const bool plain = !context.query_positions_bt.defined() && !context.key_positions_bs.defined() &&
                     !context.query_documents_bt.defined() && !context.key_documents_bs.defined() &&
                     !context.key_lengths_b.defined();
  Places places;
  if (!plain) places = resolve_places(context, queries, keys, at::kCPU);
  std::vector<TokenPlace> row(plain ? static_cast<size_t>(keys) : 0);
  for (size_t n = 0; n < row.size(); ++n) row[n].position = static_cast<int64_t>(n);
  for (int64_t b = 0; b < batch; ++b) {
    if (!plain) {
      row = places_of(places.key_positions_bs, places.key_documents_bs, b);
      if (!queries_are_last_keys(places_of(places.query_positions_bt, places.query_documents_bt, b),
                                 row))
        return {.plans = {}, .reason = "the queries are not the last of the keys"};
    }
    if (std::string why = plain ? "" : beyond_grouped_plans(rule, row); !why.empty())
      return {.plans = {}, .reason = std::move(why)};
    out.plans.push_back(make_grouped_plan(
        rule, {row, std::span(bits + b * keys, static_cast<size_t>(keys)), queries}, wanted));
  }
  return out;
}

std::string beyond_grouped(const AttentionSpec& spec, const at::Tensor& q,
                           const AttentionContext& context) {
  if (spec.focus.gate != FocusSpec::Gate::hard) return "grouped kernels are for gate hard";
  if (spec.bias.kind != BiasSpec::Kind::none) return "grouped kernels have no position bias";
  if (spec.dropout > 0.0 && context.training) return "grouped kernels have no dropout";
  AttentionSpec plain = spec;
  plain.focus = {};
  return beyond_fused(plain, q);
}

AttentionResult grouped_attention(const AttentionSpec& spec, GroupedPlans plans,
                                  const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionTensors& tensors,
                                  const AttentionContext& context) {
  AttentionResult result;
  result.path = {.name = "grouped",
                 .isa = kernel_isa(q.scalar_type()),
                 .plan = plans.name(),
                 .reason = plans.plans.empty() ? "" : plans.plans.front().reason};
  auto call = c10::make_intrusive<GroupedCall>();
  call->fused = fused_call(spec, nullptr, context);
  call->plans = std::move(plans.plans);
  const FusedOperands x = fused_operands(spec, q, k, v, tensors);
  if (context.want_stats) result.path.reason += "; " + visited(call->plans);
  const variable_list outputs =
      GroupedAttention::apply(x.q, x.k, x.v, x.tau_bt, x.sink_h, std::move(call));
  result.out_bhte = outputs[0].to(q.scalar_type());
  result.lse_bht = outputs[1];
  if (context.want_stats) {
    const at::Tensor means = outputs[2].mean(at::IntArrayRef{0, 2});
    result.stats = {means.select(1, 0), means.select(1, 1), means.select(1, 2)};
  }
  return result;
}

}  // namespace fovea
