// The path of torch's scaled_dot_product_attention, where its semantics are exactly ours.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "fovea/attention/isolation.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/paths/path.h"
#include "fovea/attention/pipeline.h"
#include "fovea/attention/plan.h"
#include "fovea/kernels/common/isa.h"

namespace fovea {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The dtype in which the CPU operation runs. Its bfloat16 form wins only with tile registers (AMX):
// elsewhere float32 is faster by a third at T = 256 and no slower at 1024, and rounds less. Its
// gradients start from the rounded output, so none begins there: where one weight is near 1, dP -
// dO.O cancels. Its float16 form accumulates gradients in float16.
at::ScalarType compute_type(at::ScalarType dtype, bool gradients) {
  static const bool tiles = found_isa() == Isa::amx;
  const bool wide = dtype == at::kHalf || (dtype == at::kBFloat16 && (gradients || !tiles));
  return wide ? at::kFloat : dtype;
}

// Repeated for its query heads, in the compute dtype, unit stride in the last dimension (the
// operation reads rows as such).
at::Tensor prepared(const at::Tensor& x_bgsd, int64_t heads, at::ScalarType dtype) {
  const int64_t b = x_bgsd.size(0), g = x_bgsd.size(1), s = x_bgsd.size(2), d = x_bgsd.size(3);
  at::Tensor x = x_bgsd.to(dtype);
  if (x.stride(3) != 1) x = x.contiguous();
  return g == heads ? x : x.unsqueeze(2).expand({b, g, heads / g, s, d}).reshape({b, heads, s, d});
}

// The gradient of a repeated head is the sum over its copies.
at::Tensor collected(const at::Tensor& grad_bhsd, const at::Tensor& like_bgsd) {
  const int64_t g = like_bgsd.size(1), h = grad_bhsd.size(1);
  const at::Tensor sum = g == h ? grad_bhsd : grad_bhsd.unflatten(1, {g, h / g}).sum(2);
  return sum.to(like_bgsd.scalar_type());
}

at::Tensor cut(const at::Tensor& x_bht, const Segment& s) {
  return x_bht.narrow(0, s.row_begin, s.row_end - s.row_begin).narrow(2, s.begin, s.end - s.begin);
}

// [b, h, t, ...] in the memory order of [b, t, h, ...], so that merging heads afterwards needs no
// copy.
at::Tensor empty_by_token(std::vector<int64_t> sizes, const at::TensorOptions& options) {
  std::swap(sizes[1], sizes[2]);
  return at::empty(sizes, options).transpose(1, 2);
}

std::vector<int64_t> packed(const std::vector<Segment>& segments) {
  std::vector<int64_t> numbers;
  for (const Segment& s : segments)
    numbers.insert(numbers.end(), {s.row_begin, s.row_end, s.begin, s.end});
  return numbers;
}

std::vector<Segment> unpacked(const std::vector<int64_t>& numbers) {
  std::vector<Segment> segments;
  for (size_t n = 0; n < numbers.size(); n += 4) {
    segments.push_back({numbers[n], numbers[n + 1], numbers[n + 2], numbers[n + 3]});
  }
  return segments;
}

// The CPU operation with its own gradient formula. Segments are one call each, on views, so that
// pairs across documents cost nothing and cannot leak; without segments it is one call with an
// additive mask (no elements: none). Only the inputs as given, the output before it is rounded, and
// lse are kept for the backward.
class CpuAttention : public torch::autograd::Function<CpuAttention> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q_bhtd,
                               const at::Tensor& k_bgsd, const at::Tensor& v_bgse,
                               const at::Tensor& mask, double scale, bool causal,
                               const std::vector<int64_t>& segments, bool gradients,
                               bool lse_gradient) {
    const at::ScalarType dtype = compute_type(v_bgse.scalar_type(), gradients);
    const int64_t h = q_bhtd.size(1);
    const at::Tensor q = prepared(q_bhtd, h, dtype), k = prepared(k_bgsd, h, dtype),
                     v = prepared(v_bgse, h, dtype);
    at::Tensor out, lse;
    if (segments.empty()) {
      std::tie(out, lse) = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal,
                                                                           optional(mask), scale);
    } else {
      out = empty_by_token({q.size(0), h, q.size(2), v.size(3)}, v.options());
      lse = empty_by_token({q.size(0), h, q.size(2)},
                           q.options().dtype(dtype == at::kDouble ? at::kDouble : at::kFloat));
      for (const Segment& s : unpacked(segments)) {
        const auto [o, l] = at::_scaled_dot_product_flash_attention_for_cpu(
            cut(q, s), cut(k, s), cut(v, s), 0.0, true, {}, scale);
        cut(out, s).copy_(o);
        cut(lse, s).copy_(l);
      }
    }
    ctx->save_for_backward({q_bhtd, k_bgsd, v_bgse, mask, out, lse});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["segments"] = segments;
    if (!lse_gradient) ctx->mark_non_differentiable({lse});
    ctx->set_materialize_grads(false);
    return {out.to(v_bgse.scalar_type()), lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::ScalarType dtype = saved[4].scalar_type();
    const int64_t h = saved[0].size(1);
    Call call{.scale = ctx->saved_data["scale"].toDouble(),
              .causal = ctx->saved_data["causal"].toBool(),
              .mask = optional(saved[3]),
              .segments = unpacked(ctx->saved_data["segments"].toIntVector())};
    Rows rows{.q = prepared(saved[0], h, dtype),
              .k = prepared(saved[1], h, dtype),
              .v = prepared(saved[2], h, dtype),
              .out = prepared(saved[4], h, dtype),
              .lse = saved[5],
              .grad = grads[0].defined() ? prepared(grads[0], h, dtype) : at::Tensor()};
    if (!rows.grad.defined()) rows.grad = at::zeros_like(rows.out);
    const int64_t width = rows.v.size(3);
    if (grads[1].defined()) add_lse_gradient(rows, grads[1]);
    SdpaGradients g = backward_rows(rows, call);
    if (!all_finite(g.q) || !all_finite(g.k) || !all_finite(g.v)) g = isolated(rows, call);
    if (g.q.size(3) != width) {
      for (at::Tensor* x : {&g.q, &g.k, &g.v}) *x = x->narrow(3, 0, width);
    }
    return {collected(g.q, saved[0]),
            collected(g.k, saved[1]),
            collected(g.v, saved[2]),
            {},
            {},
            {},
            {},
            {},
            {}};
  }

 private:
  struct Call {
    double scale = 1.0;
    bool causal = true;
    std::optional<at::Tensor> mask;
    std::vector<Segment> segments;
  };
  struct Rows {
    at::Tensor q, k, v, out, lse, grad;
  };
  struct SdpaGradients {
    at::Tensor q, k, v;
  };

  static std::optional<at::Tensor> optional(const at::Tensor& mask) {
    return mask.numel() > 0 ? std::optional(mask) : std::nullopt;
  }

  // The operation's backward is dS = P (dP - sum(dO O)) and knows no gradient of lse, which would
  // add P dlse. One more value column does it: v = 1 there and dO = dlse, so dP grows by dlse,
  // while the output handed over is 0 there, so the sum does not.
  static void add_lse_gradient(Rows& rows, const at::Tensor& grad_lse_bht) {
    constexpr int64_t kColumns = 8;  // one is used; the width stays a multiple of the vector length
    const auto widened = [](const at::Tensor& x, const at::Tensor& first) {
      at::Tensor wide = at::constant_pad_nd(x, {0, kColumns});
      if (first.defined()) wide.select(3, x.size(3)).copy_(first);
      return wide;
    };
    rows.q = widened(rows.q, {});
    rows.k = widened(rows.k, {});
    rows.v = widened(rows.v, at::ones({}, rows.v.options()));
    rows.out = widened(rows.out, {});
    rows.grad = widened(rows.grad, grad_lse_bht);
  }

  // Without the rows whose gradient of the output is not finite; they and the keys that they see
  // get NaN. Outputs are finite here (attention()), and keys that are not are seen by nobody.
  static SdpaGradients isolated(const Rows& r, const Call& call) {
    const at::Tensor bad = r.grad.isfinite().all(-1).logical_not();  // [b, h, t]
    const auto finite = [](const at::Tensor& x) {
      return x.masked_fill(x.isfinite().logical_not(), 0.0);
    };
    Rows clean = r;
    clean.q = finite(r.q).masked_fill(bad.unsqueeze(-1), 0.0);
    clean.k = finite(r.k);
    clean.v = finite(r.v);
    clean.grad = r.grad.masked_fill(bad.unsqueeze(-1), 0.0);
    clean.lse = r.lse.masked_fill(bad, std::numeric_limits<double>::infinity());
    SdpaGradients g = backward_rows(clean, call);
    const at::Tensor seen = seen_pairs(call, r);
    const at::Tensor keys = seen.logical_and(bad.unsqueeze(-1)).any(2);  // [b, h, s]
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    return {g.q.masked_fill(bad.unsqueeze(-1), kNaN), g.k.masked_fill(keys.unsqueeze(-1), kNaN),
            g.v.masked_fill(keys.unsqueeze(-1), kNaN)};
  }

  // [b or 1, 1 or h, t, s].
  static at::Tensor seen_pairs(const Call& call, const Rows& r) {
    const int64_t t = r.q.size(2), s = r.k.size(2);
    const auto options = r.q.options().dtype(at::kBool);
    if (call.mask) return at::isneginf(*call.mask).logical_not();
    at::Tensor causal = at::ones({1, 1, t, s}, options);
    if (call.causal || !call.segments.empty()) causal = causal.tril();
    if (call.segments.empty()) return causal;
    at::Tensor inside = at::zeros({r.q.size(0), 1, t, s}, options);
    for (const Segment& g : call.segments)
      inside.narrow(0, g.row_begin, g.row_end - g.row_begin)
          .narrow(2, g.begin, g.end - g.begin)
          .narrow(3, g.begin, g.end - g.begin)
          .fill_(true);
    return inside.logical_and(causal);
  }

  static SdpaGradients backward_rows(const Rows& r, const Call& call) {
    SdpaGradients g;
    if (call.segments.empty()) {
      std::tie(g.q, g.k, g.v) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          r.grad, r.q, r.k, r.v, r.out, r.lse, 0.0, call.causal, call.mask, call.scale);
      return g;
    }
    g = {empty_by_token(r.q.sizes().vec(), r.q.options()),
         empty_by_token(r.k.sizes().vec(), r.k.options()),
         empty_by_token(r.v.sizes().vec(), r.v.options())};
    for (const Segment& s : call.segments) {
      const auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          cut(r.grad, s), cut(r.q, s), cut(r.k, s), cut(r.v, s), cut(r.out, s), cut(r.lse, s), 0.0,
          true, {}, call.scale);
      cut(g.q, s).copy_(q);
      cut(g.k, s).copy_(k);
      cut(g.v, s).copy_(v);
    }
    return g;
  }
};

// The rectangles of a segment plan through the public operation, for devices without the CPU's.
at::Tensor segments_anywhere(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             double scale, const MaskPlan& plan) {
  std::vector<at::Tensor> rows, parts;
  const auto close_row = [&] {
    if (!parts.empty()) rows.push_back(parts.size() == 1 ? parts[0] : at::cat(parts, 2));
    parts.clear();
  };
  for (const Segment& s : plan.segments) {
    if (s.begin == 0) close_row();
    parts.push_back(
        at::scaled_dot_product_attention(cut(q, s), cut(k, s), cut(v, s), {}, 0.0, true, scale));
  }
  close_row();
  return at::cat(rows, 0);
}

/// cuDNN, which torch prefers for bfloat16 on new GPUs, compiles a kernel for every number of keys:
/// a tenth of a second for each token that is written.
class WithoutCudnn {
 public:
  explicit WithoutCudnn(bool active)
      : was_(at::globalContext().userEnabledCuDNNSDP()), active_(active && was_) {
    if (active_) at::globalContext().setSDPUseCuDNN(false);
  }
  ~WithoutCudnn() {
    if (active_) at::globalContext().setSDPUseCuDNN(was_);
  }
  WithoutCudnn(const WithoutCudnn&) = delete;
  WithoutCudnn& operator=(const WithoutCudnn&) = delete;

 private:
  bool was_, active_;
};

at::Tensor on_device(const MaskPlan& plan, const at::Tensor& q, const at::Tensor& k_bgsd,
                     const at::Tensor& v_bgse, double scale) {
  const at::Tensor k = prepared(k_bgsd, q.size(1), k_bgsd.scalar_type()),
                   v = prepared(v_bgse, q.size(1), v_bgse.scalar_type());
  if (plan.kind == MaskPlan::Kind::segments) return segments_anywhere(q, k, v, scale, plan);
  const WithoutCudnn growing(q.size(2) != k.size(2));
  const bool masked = plan.kind == MaskPlan::Kind::mask;
  const std::optional<at::Tensor> mask =
      masked ? std::optional(plan.additive.to(q.scalar_type())) : std::nullopt;
  return at::scaled_dot_product_attention(q, k, v, mask, 0.0, plan.kind == MaskPlan::Kind::causal,
                                          scale);
}

at::Tensor pad_width(const at::Tensor& x, int64_t width) {
  return x.size(-1) == width ? x : at::constant_pad_nd(x, {0, width - x.size(-1)});
}

// A learned tau scales whole rows, so it moves into q; the product is rounded at most once, from
// float32 (or float64).
at::Tensor divide_rows(const at::Tensor& q_bhtd, const at::Tensor& tau_bt, bool gradients) {
  const at::ScalarType dtype = q_bhtd.scalar_type();
  const at::Tensor factor = tau_bt.to(dtype == at::kDouble ? at::kDouble : at::kFloat).reciprocal();
  return (q_bhtd * factor.unsqueeze(1).unsqueeze(-1))
      .to(q_bhtd.device().is_cpu() ? compute_type(dtype, gradients) : dtype);
}

// Spec 7.5: one more key with value 0 scales the output by sigmoid(lse - z) and joins the lse.
void add_sink(AttentionResult& result, const at::Tensor& sink_logit_h, at::ScalarType dtype) {
  const at::Tensor z = sink_logit_h.to(result.lse_bht.scalar_type()).reshape({1, -1, 1});
  const at::Tensor share = at::sigmoid(result.lse_bht - z).unsqueeze(-1);
  result.out_bhte = (result.out_bhte * share).to(dtype);
  result.lse_bht = at::logaddexp(result.lse_bht, z);
}

// Why torch's operation cannot give exactly our result; the plan's own reasons come later.
std::optional<std::string> why_not_settings(const AttentionCall& call) {
  const AttentionSpec& spec = call.spec;
  const bool on_cpu = call.q.device().is_cpu();
  for (const StageUse& use : call.stages())
    if (use.why_not_sdpa)
      return fmt::format("stage {}: {}", stage_of(use.stage).name, *use.why_not_sdpa);
  if (call.drops_weights()) return "stage softmax: dropout is counter-based";
  const bool reduced = accumulate_type(call.q.scalar_type()) != call.q.scalar_type();
  if (spec.bias.kind == BiasSpec::Kind::alibi && reduced && !on_cpu)
    return "stage gate_and_bias: there alibi would be rounded to the dtype of q";
  if (call.context.want_lse && !on_cpu) return "lse is wanted, which only the CPU gives";
  if (spec.sink_logit && !on_cpu)
    return "stage softmax: sink_logit needs lse, which only the CPU gives";
  return std::nullopt;
}

std::shared_ptr<const MaskPlan> plan_of(const AttentionCall& call) {
  const std::shared_ptr<PlanCache>& plans = call.context.plans;
  return *call.made.get([&] {
    return plans ? plans->get(call.spec, call.context, call.shape())
                 : make_mask_plan(call.spec, call.context, call.shape());
  });
}

std::optional<std::string> why_not_sdpa(const AttentionCall& call) {
  if (auto why = why_not_settings(call)) return why;
  if (call.q.size(0) == 0 || call.q.size(2) == 0) return "nothing to compute";
  if (plan_of(call)->empty_rows) return "some rows have no allowed key";
  return std::nullopt;
}

// Torch's operation gives NaN and infinity to rows that do not see them, or 0 to rows that do.
AttentionResult by_reference_sdpa(const AttentionCall& call) {
  AttentionResult result = reference_path().run(call);
  result.path.name = PathName::reference;
  result.path.reason = {.kind = PathReason::Kind::refused,
                        .detail = "torch's operation is for finite numbers"};
  return result;
}

// Scale (constant or tau), position bias, mask by the plan and sink logit. On the CPU lse comes
// with it; elsewhere there is neither lse nor sink logit.
AttentionResult run_sdpa(const AttentionCall& call) {
  const AttentionSpec& spec = call.spec;
  if (call.q.device().is_cpu() && !(all_finite(call.q) && all_finite(call.k) && all_finite(call.v)))
    return by_reference_sdpa(call);
  const std::shared_ptr<const MaskPlan> plan = plan_of(call);
  const bool learned = call.tensors.tau_bt.defined();
  const bool gradients = call.wants_gradient();
  const double scale = learned ? 1.0 : spec.logit_scale();
  // The operation wants one width: zeros added to q and k leave the products alone, zeros added to
  // v are cut off again.
  const int64_t width = std::max(spec.head_dim, spec.value_width());
  const at::Tensor q =
      pad_width(learned ? divide_rows(call.q, call.tensors.tau_bt, gradients) : call.q, width);
  const at::Tensor k = pad_width(call.k, width);
  at::Tensor v = pad_width(call.v, width);
  // The output that a sink logit scales is rounded once, after it.
  if (spec.sink_logit && v.scalar_type() != at::kDouble) v = v.to(at::kFloat);
  AttentionResult result;
  result.path.plan = plan->name;
  if (q.device().is_cpu()) {
    const at::Tensor mask =
        plan->kind == MaskPlan::Kind::mask ? plan->additive : at::empty({0}, at::kFloat);
    const variable_list both = CpuAttention::apply(
        q, k, v, mask, scale, plan->kind == MaskPlan::Kind::causal, packed(plan->segments),
        gradients, call.context.want_lse || spec.sink_logit);
    result.out_bhte = both[0];
    result.lse_bht = both[1];
  } else {
    result.out_bhte = on_device(*plan, q, k, v, scale);
  }
  if (width != spec.value_width())
    result.out_bhte = result.out_bhte.narrow(-1, 0, spec.value_width());
  if (spec.sink_logit) add_sink(result, call.tensors.sink_logit_h, call.q.scalar_type());
  return q.device().is_cpu() && !all_finite(result.out_bhte) ? by_reference_sdpa(call) : result;
}

}  // namespace

AttentionPath torch_sdpa_path() {
  return {.name = PathName::torch_sdpa,
          .key_rule = KeyRule::mask,
          .why_not = why_not_sdpa,
          .run = run_sdpa};
}

}  // namespace fovea
