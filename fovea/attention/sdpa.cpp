// torch's scaled_dot_product_attention under our semantics.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/sdpa.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

namespace fovea {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Part {
  at::Tensor out_bhte, lse_bht;
};

// A learned tau scales whole rows, so it moves into q; the product is rounded once, from float32
// (or float64).
at::Tensor divide_rows(const at::Tensor& q_bhtd, const at::Tensor& tau_bt) {
  const at::Tensor factor =
      tau_bt.to(q_bhtd.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).reciprocal();
  return (q_bhtd * factor.unsqueeze(1).unsqueeze(-1)).to(q_bhtd.scalar_type());
}

// Key/value heads repeated for their query heads; the operations behind
// scaled_dot_product_attention want equal counts.
at::Tensor repeat_heads(const at::Tensor& x_bgsd, int64_t heads) {
  const int64_t g = x_bgsd.size(1);
  if (g == heads) return x_bgsd;
  return x_bgsd.unsqueeze(2)
      .expand({x_bgsd.size(0), g, heads / g, x_bgsd.size(2), x_bgsd.size(3)})
      .flatten(1, 2);
}

at::Tensor pad_width(const at::Tensor& x, int64_t width) {
  return x.size(-1) == width ? x : at::constant_pad_nd(x, {0, width - x.size(-1)});
}

at::Tensor cut(const at::Tensor& x_bhtd, const Segment& s) {
  return x_bhtd.narrow(0, s.row_begin, s.row_end - s.row_begin).narrow(2, s.begin, s.end - s.begin);
}

// [b, h, t, e] in the memory order of [b, t, h, e], so that merging heads afterwards needs no copy.
at::Tensor empty_like_heads(const at::Tensor& x_bhte) {
  return at::empty({x_bhte.size(0), x_bhte.size(2), x_bhte.size(1), x_bhte.size(3)},
                   x_bhte.options())
      .transpose(1, 2);
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

// Causal attention inside every segment, nothing across: each segment is one call on views, so that
// pairs across documents cost nothing and cannot leak. lse [b, h, t] comes with it and has no
// gradient.
class SegmentAttention : public torch::autograd::Function<SegmentAttention> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, double scale,
                               const std::vector<int64_t>& segments) {
    at::Tensor out = empty_like_heads(v);
    at::Tensor lse =
        at::empty({q.size(0), q.size(2), q.size(1)},
                  q.options().dtype(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat))
            .transpose(1, 2);
    for (const Segment& s : unpacked(segments)) {
      const auto [o, l] = at::_scaled_dot_product_flash_attention_for_cpu(
          cut(q, s), cut(k, s), cut(v, s), 0.0, true, {}, scale);
      cut(out, s).copy_(o);
      lse.narrow(0, s.row_begin, s.row_end - s.row_begin)
          .narrow(2, s.begin, s.end - s.begin)
          .copy_(l);
    }
    ctx->save_for_backward({q, k, v, out, lse});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["segments"] = segments;
    ctx->mark_non_differentiable({lse});
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const double scale = ctx->saved_data["scale"].toDouble();
    at::Tensor grad_q = empty_like_heads(q), grad_k = empty_like_heads(k),
               grad_v = empty_like_heads(v);
    for (const Segment& s : unpacked(ctx->saved_data["segments"].toIntVector())) {
      const at::Tensor l =
          lse.narrow(0, s.row_begin, s.row_end - s.row_begin).narrow(2, s.begin, s.end - s.begin);
      const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          cut(grads[0], s), cut(q, s), cut(k, s), cut(v, s), cut(out, s), l, 0.0, true, {}, scale);
      cut(grad_q, s).copy_(gq);
      cut(grad_k, s).copy_(gk);
      cut(grad_v, s).copy_(gv);
    }
    return {grad_q, grad_k, grad_v, at::Tensor(), at::Tensor()};
  }
};

// The rectangles of a segment plan through the public operation, for devices without the CPU's.
at::Tensor segments_anywhere(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             double scale, const AttentionPlan& plan) {
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

Part run(const AttentionPlan& plan, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
         double scale, bool want_lse) {
  if (plan.kind == AttentionPlan::Kind::segments) {
    if (!q.device().is_cpu()) return {segments_anywhere(q, k, v, scale, plan), {}};
    const variable_list results = SegmentAttention::apply(q, k, v, scale, packed(plan.segments));
    return {results[0], results[1]};
  }
  const std::optional<at::Tensor> mask =
      plan.kind == AttentionPlan::Kind::mask ? std::optional(plan.additive) : std::nullopt;
  const bool causal = plan.kind == AttentionPlan::Kind::causal;
  if (!want_lse) return {at::scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale), {}};
  const auto [out, lse] =
      at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, mask, scale);
  return {out, lse};
}

}  // namespace

AttentionResult sdpa_attention(const AttentionSpec& spec, const AttentionPlan& plan,
                               const at::Tensor& q_bhtd, const at::Tensor& k_bgsd,
                               const at::Tensor& v_bgse, const at::Tensor& tau_bt, bool want_lse) {
  const bool learned = tau_bt.defined();
  const double scale = learned ? 1.0 : spec.logit_scale();
  // The CPU operation wants one width: zeros added to q and k leave the products alone, zeros added
  // to v are cut off again.
  const int64_t width = std::max(spec.head_dim, spec.value_width());
  const at::Tensor q = pad_width(learned ? divide_rows(q_bhtd, tau_bt) : q_bhtd, width);
  const at::Tensor k = repeat_heads(pad_width(k_bgsd, width), spec.heads);
  const at::Tensor v = repeat_heads(pad_width(v_bgse, width), spec.heads);
  const Part part = run(plan, q, k, v, scale, want_lse);
  const bool padded = width != spec.value_width();
  return {.out_bhte = padded ? part.out_bhte.narrow(-1, 0, spec.value_width()) : part.out_bhte,
          .lse_bht = part.lse_bht,
          .path = {}};
}

}  // namespace fovea
