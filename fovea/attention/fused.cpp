// From tensors to the fused kernels and back.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/fused.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "fovea/attention/pipeline.h"
#include "fovea/attention/places.h"
#include "fovea/attention/stages.h"
#include "fovea/kernels/cpu/attention.h"

namespace fovea {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What forward and backward share besides tensors. Travels through autograd as a capsule.
struct FusedCall : torch::CustomClassHolder {
  std::shared_ptr<const VisitPlan> plan;
  kernels::LogitRule rule;   // without the pointers to tensors
  std::vector<float> alibi;  // slopes
};

// [b, h, t, ...] in the memory order of [b, t, h, ...], so that merging heads afterwards needs no
// copy.
at::Tensor empty_by_token(std::vector<int64_t> sizes, const at::TensorOptions& options) {
  std::swap(sizes[1], sizes[2]);
  return at::empty(sizes, options).transpose(1, 2);
}

at::Tensor contiguous_rows(const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

at::Tensor contiguous_floats(const at::Tensor& x) {
  return x.defined() ? x.to(at::kFloat).contiguous() : x;
}

const float* floats(const at::Tensor& x) {
  return x.defined() && x.numel() > 0 ? x.const_data_ptr<float>() : nullptr;
}

template <class T>
kernels::HeadRows<const T> rows_of(const at::Tensor& x) {
  return {static_cast<const T*>(x.const_data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

template <class T>
kernels::HeadRows<T> writable_rows_of(const at::Tensor& x) {
  return {static_cast<T*>(x.data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

kernels::AttentionSizes sizes_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return {.batch = q.size(0),
          .heads = q.size(1),
          .kv_heads = k.size(1),
          .queries = q.size(2),
          .keys = k.size(2),
          .head_dim = q.size(3),
          .value_dim = v.size(3)};
}

// The tensors of one call, prepared for the kernels (float rows where they are not q, k, v).
struct Operands {
  at::Tensor q, k, v, tau_bt, bias_hn, sink_h;
};

kernels::LogitRule rule_of(const FusedCall& call, const Operands& x) {
  kernels::LogitRule rule = call.rule;
  rule.tau = floats(x.tau_bt);
  rule.distance_bias = floats(x.bias_hn);
  rule.bias_count = x.bias_hn.defined() && x.bias_hn.numel() > 0 ? x.bias_hn.size(1) : 0;
  rule.sink_logit = floats(x.sink_h);
  rule.alibi = call.alibi.empty() ? nullptr : call.alibi.data();
  return rule;
}

template <class T>
void run_forward(const FusedCall& call, const Operands& x, const at::Tensor& out,
                 const at::Tensor& lse) {
  kernels::run(kernels::AttentionForward<T>{.sizes = sizes_of(x.q, x.k, x.v),
                                            .rule = rule_of(call, x),
                                            .visits = call.plan->visits,
                                            .q = rows_of<T>(x.q),
                                            .k = rows_of<T>(x.k),
                                            .v = rows_of<T>(x.v),
                                            .out = writable_rows_of<T>(out),
                                            .lse = lse.mutable_data_ptr<float>()});
}

struct Gradients {
  at::Tensor q, k, v, tau_bht, bias_bhn, sink_bh;
};

template <class T>
void run_backward(const FusedCall& call, const Operands& x, const at::Tensor& out,
                  const at::Tensor& lse, const at::Tensor& dout, const at::Tensor& dlse,
                  const Gradients& g) {
  const auto target = [](const at::Tensor& t) {
    return t.defined() ? t.mutable_data_ptr<float>() : nullptr;
  };
  kernels::run(kernels::AttentionBackward<T>{.sizes = sizes_of(x.q, x.k, x.v),
                                             .rule = rule_of(call, x),
                                             .visits = call.plan->visits,
                                             .q = rows_of<T>(x.q),
                                             .k = rows_of<T>(x.k),
                                             .v = rows_of<T>(x.v),
                                             .out = rows_of<T>(out),
                                             .dout = rows_of<T>(dout),
                                             .lse = lse.const_data_ptr<float>(),
                                             .dlse = floats(dlse),
                                             .dq = writable_rows_of<T>(g.q),
                                             .dk = writable_rows_of<T>(g.k),
                                             .dv = writable_rows_of<T>(g.v),
                                             .dtau = target(g.tau_bht),
                                             .dsink = target(g.sink_bh),
                                             .dbias = target(g.bias_bhn)});
}

// Inputs q, k, v, tau [b, t], bias by distance [h, n], sink [h] (empty tensors where absent);
// outputs out and lse.
class FusedAttention : public torch::autograd::Function<FusedAttention> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& tau, const at::Tensor& bias,
                               const at::Tensor& sink, const c10::intrusive_ptr<FusedCall>& call) {
    const Operands x{contiguous_rows(q), contiguous_rows(k), contiguous_rows(v), tau, bias, sink};
    const at::Tensor out =
        empty_by_token({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    const at::Tensor lse =
        at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
    if (q.scalar_type() == at::kBFloat16) {
      run_forward<BFloat16>(*call, x, out, lse);
    } else {
      run_forward<float>(*call, x, out, lse);
    }
    ctx->save_for_backward({q, k, v, tau, bias, sink, out, lse});
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->set_materialize_grads(false);
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto s = ctx->get_saved_variables();
    const auto call =
        c10::static_intrusive_pointer_cast<FusedCall>(ctx->saved_data["call"].toCapsule());
    const Operands x{
        contiguous_rows(s[0]), contiguous_rows(s[1]), contiguous_rows(s[2]), s[3], s[4], s[5]};
    const at::Tensor &out = s[6], &lse = s[7];
    const at::Tensor dout =
        grads[0].defined() ? contiguous_rows(grads[0].to(out.scalar_type())) : at::zeros_like(out);
    const at::Tensor dlse = contiguous_floats(grads[1]);
    const Gradients g = make_gradients(x);
    if (x.q.scalar_type() == at::kBFloat16) {
      run_backward<BFloat16>(*call, x, out, lse, dout, dlse, g);
    } else {
      run_backward<float>(*call, x, out, lse, dout, dlse, g);
    }
    const auto summed = [](const at::Tensor& t, int64_t dim) {
      return t.defined() ? t.sum(dim) : t;
    };
    return {g.q, g.k, g.v, summed(g.tau_bht, 1), summed(g.bias_bhn, 0), summed(g.sink_bh, 0), {}};
  }

 private:
  static Gradients make_gradients(const Operands& x) {
    const auto options = x.q.options().dtype(at::kFloat);
    const int64_t b = x.q.size(0), h = x.q.size(1);
    Gradients g{.q = empty_by_token(x.q.sizes().vec(), x.q.options()),
                .k = empty_by_token(x.k.sizes().vec(), x.k.options()),
                .v = empty_by_token(x.v.sizes().vec(), x.v.options())};
    if (x.tau_bt.numel() > 0) g.tau_bht = at::empty({b, h, x.q.size(2)}, options);
    if (x.bias_hn.numel() > 0) g.bias_bhn = at::empty({b, h, x.bias_hn.size(1)}, options);
    if (x.sink_h.numel() > 0) g.sink_bh = at::empty({b, h}, options);
    return g;
  }
};

// The T5 table by distance [h, n]: entry 0 is distance 0 (causal) or -max_distance. Differentiable.
at::Tensor bias_by_distance(const AttentionSpec& spec, const at::Tensor& table) {
  const int64_t last = spec.bias.max_distance, first = spec.mask.causal ? 0 : -last;
  const at::Tensor buckets =
      t5_buckets(at::arange(first, last + 1, table.options().dtype(at::kLong)), spec.bias.buckets,
                 last, spec.mask.causal);
  return table.to(at::kFloat).index_select(0, buckets).t().contiguous();
}

c10::intrusive_ptr<FusedCall> call_of(const AttentionSpec& spec,
                                      std::shared_ptr<const VisitPlan> plan,
                                      const AttentionContext& context) {
  auto call = c10::make_intrusive<FusedCall>();
  call->plan = std::move(plan);
  call->rule.scale = static_cast<float>(spec.logit_scale());
  call->rule.soft_cap = static_cast<float>(spec.soft_cap);
  if (spec.bias.kind == BiasSpec::Kind::t5 && !spec.mask.causal)
    call->rule.bias_first = -spec.bias.max_distance;
  if (spec.bias.kind == BiasSpec::Kind::alibi) {
    const std::vector<double> slopes = alibi_slopes(spec.heads);
    call->alibi.assign(slopes.begin(), slopes.end());
  }
  if (context.training) {
    call->rule.dropout = static_cast<float>(spec.dropout);
    call->rule.dropout_seed = context.dropout_seed;
    call->rule.dropout_layer = static_cast<uint32_t>(context.layer);
  }
  return call;
}

std::vector<TokenPlace> places_of(const at::Tensor& positions, const at::Tensor& documents,
                                  int64_t row) {
  const auto pick = [row](const at::Tensor& x) {
    return x.select(0, x.size(0) == 1 ? 0 : row).cpu().contiguous();
  };
  const at::Tensor p = pick(positions), d = documents.defined() ? pick(documents) : at::Tensor();
  std::vector<TokenPlace> places(static_cast<size_t>(p.numel()));
  for (size_t n = 0; n < places.size(); ++n) {
    places[n] = {.document = d.defined() ? d.const_data_ptr<int64_t>()[n] : 0,
                 .position = p.const_data_ptr<int64_t>()[n]};
  }
  return places;
}

}  // namespace

std::shared_ptr<const VisitPlan> make_visit_plan(const AttentionSpec& spec,
                                                 const AttentionContext& context,
                                                 const CallShape& shape) {
  const at::NoGradGuard no_gradient;
  const Places places = resolve_places(context, shape.queries, shape.keys, shape.device);
  auto plan = std::make_shared<VisitPlan>();
  plan->name = plan_name(spec, places, shape.keys);
  bool one = true;  // the same places in every row of the batch
  for (const at::Tensor* x : {&places.query_positions_bt, &places.key_positions_bs,
                              &places.query_documents_bt, &places.key_documents_bs})
    one &= !x->defined() || x->size(0) == 1;
  for (int64_t b = 0; b < (one ? 1 : shape.batch); ++b) {
    plan->visits.push_back(
        make_visits(spec.mask, places_of(places.query_positions_bt, places.query_documents_bt, b),
                    places_of(places.key_positions_bs, places.key_documents_bs, b)));
  }
  return plan;
}

std::string beyond_fused(const AttentionSpec& spec, const at::Tensor& q) {
  if (!q.device().is_cpu()) return "the fused kernels run on the CPU";
  const at::ScalarType dtype = q.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf)
    return fmt::format("no fused kernel for {}", at::toString(dtype));
  if (spec.focus.active()) return "no fused kernel for the groups of focus";
  for (const Stage& stage : attention_stages()) {
    const std::vector<std::string> active = stage.active(spec);
    const size_t bias = spec.bias.kind == BiasSpec::Kind::none ? 0 : 1;
    const bool joins = stage.id == StageId::convolution_before || stage.id == StageId::mix_before ||
                       stage.id == StageId::convolution_after || stage.id == StageId::mix_after;
    if ((joins && !active.empty()) || (stage.id == StageId::gate_and_bias && active.size() > bias))
      return fmt::format("stage {}: no fused kernel for {}", stage.name, fmt::join(active, ", "));
  }
  if (const auto why = kernels::beyond_attention_kernels(spec.head_dim, spec.value_width());
      !why.empty())
    return fmt::format("no fused kernel for these widths: {}; got {} and {}", why, spec.head_dim,
                       spec.value_width());
  return "";
}

AttentionResult fused_attention(const AttentionSpec& spec, std::shared_ptr<const VisitPlan> plan,
                                const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const AttentionTensors& tensors, const AttentionContext& context) {
  // float16 is computed in float32 and rounded once.
  const bool half = q.scalar_type() == at::kHalf;
  const auto widened = [half](const at::Tensor& x) { return half ? x.to(at::kFloat) : x; };
  const at::Tensor none = at::empty({0}, q.options().dtype(at::kFloat));
  const auto row_floats = [&none](const at::Tensor& x) {
    return x.defined() ? contiguous_floats(x) : none;
  };
  const at::Tensor bias =
      tensors.bias_table.defined() ? bias_by_distance(spec, tensors.bias_table) : none;
  AttentionResult result;
  result.path = {
      .name = "fused",
      .isa = std::string(q.scalar_type() == at::kBFloat16 ? kernels::attention_isa<BFloat16>()
                                                          : kernels::attention_isa<float>()),
      .plan = plan->name,
      .reason = "every active stage is pointwise"};
  const variable_list both = FusedAttention::apply(
      widened(q), widened(k), widened(v), row_floats(tensors.tau_bt), bias,
      row_floats(tensors.sink_logit_h), call_of(spec, std::move(plan), context));
  result.out_bhte = half ? both[0].to(at::kHalf) : both[0];
  result.lse_bht = both[1];
  return result;
}

}  // namespace fovea
