// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/ops.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "fovea/attention/backend.h"
#include "fovea/base/rng.h"
#include "fovea/nn/matmul.h"
#include "fovea/nn/matrix.h"
#include "fovea/runtime/operator_profile.h"
#include "fovea/runtime/own_kernels.h"

namespace fovea {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using Variables = torch::autograd::variable_list;

/// Autograd nodes take absent tensors as nullopt only.
std::optional<at::Tensor> maybe(const at::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

template <class T>
const T* in(const at::Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}
template <class T>
T* out(const at::Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

/// Floats on a GPU, where torch's fused operations compute.
bool on_gpu(const at::Tensor& x) {
  return !has_own_kernels(x) && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (on_gpu(x)) return at::rms_norm(x, {x.size(-1)}, weight.to(x.scalar_type()), eps);
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor f = x.to(wide);
  const at::Tensor normed = f * at::rsqrt(f.square().mean(-1, true) + eps);
  return (normed * weight.to(wide)).to(x.scalar_type());
}

/// x W^T in the dtype of x with a master W of another dtype, which gets its gradient in its own
/// dtype.
class MasterLinear : public Function<MasterLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& master) {
    const at::Tensor w = master.to(x.scalar_type());
    ctx->save_for_backward({x, w});
    ctx->saved_data["master"] = static_cast<int64_t>(master.scalar_type());
    return linear_product(x, w);
  }
  static Variables backward(AutogradContext* ctx, Variables grads) {
    const Variables saved = ctx->get_saved_variables();
    const at::Tensor x = saved[0].flatten(0, -2), dy = grads[0].flatten(0, -2);
    const auto master = static_cast<at::ScalarType>(ctx->saved_data["master"].toInt());
    Variables result(2);
    if (ctx->needs_input_grad(0))
      result[0] = linear_product(dy, saved[1].t()).view(saved[0].sizes());
    if (ctx->needs_input_grad(1)) result[1] = weight_gradient(dy, x).to(master);
    return result;
  }
};

class AddRmsNorm : public Function<AddRmsNorm> {
 public:
  static Variables forward(AutogradContext* ctx, const at::Tensor& x_in,
                           const std::optional<at::Tensor>& delta_in, const at::Tensor& weight,
                           double eps) {
    const at::Tensor x = x_in.contiguous(),
                     delta = delta_in ? delta_in->contiguous() : at::Tensor();
    const int64_t n = x.size(-1), rows = x.numel() / std::max<int64_t>(n, 1);
    const at::Tensor y = at::empty_like(x), rstd = at::empty({rows}, x.options().dtype(at::kFloat));
    const at::Tensor sum = delta.defined() ? at::empty_like(x) : x;
    with_kernel_type(x.scalar_type(), "rms_norm", [&]<class T>(T) {
      backend_for(x).run(
          kernels::RmsNormForward<T>{.x = in<T>(x),
                                     .delta = delta.defined() ? in<T>(delta) : nullptr,
                                     .w = weight.const_data_ptr<float>(),
                                     .sum = delta.defined() ? out<T>(sum) : nullptr,
                                     .y = out<T>(y),
                                     .rstd = rstd.mutable_data_ptr<float>(),
                                     .rows = rows,
                                     .n = n,
                                     .eps = static_cast<float>(eps)});
    });
    ctx->save_for_backward({sum, weight, rstd});
    ctx->saved_data["delta"] = delta.defined();
    if (!delta.defined()) return {y};
    return {sum, y};
  }
  static Variables backward(AutogradContext* ctx, Variables grads) {
    const Variables saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const bool with_delta = ctx->saved_data["delta"].toBool();
    const at::Tensor residual =
        with_delta && grads[0].defined() ? grads[0].contiguous() : at::Tensor();
    const at::Tensor& dy_in = grads.back();
    if (!dy_in.defined())
      return {residual, with_delta ? residual : at::Tensor(), at::Tensor(), at::Tensor()};
    const at::Tensor dy = dy_in.contiguous();
    const at::Tensor dx = at::empty_like(x), dw = at::empty_like(saved[1]);
    with_kernel_type(x.scalar_type(), "rms_norm", [&]<class T>(T) {
      backend_for(x).run(
          kernels::RmsNormBackward<T>{.dy = in<T>(dy),
                                      .x = in<T>(x),
                                      .w = saved[1].const_data_ptr<float>(),
                                      .rstd = saved[2].const_data_ptr<float>(),
                                      .residual = residual.defined() ? in<T>(residual) : nullptr,
                                      .dx = out<T>(dx),
                                      .dw = dw.mutable_data_ptr<float>(),
                                      .rows = saved[2].numel(),
                                      .n = x.size(-1)});
    });
    return {dx, with_delta ? dx : at::Tensor(), dw, at::Tensor()};
  }
};

class Swiglu : public Function<Swiglu> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up_in) {
    const at::Tensor gate_up = gate_up_in.contiguous();
    std::vector<int64_t> shape = gate_up.sizes().vec();
    shape.back() /= 2;
    const at::Tensor y = at::empty(shape, gate_up.options());
    with_kernel_type(y.scalar_type(), "swiglu", [&]<class T>(T) {
      backend_for(gate_up).run(
          kernels::SwigluForward<T>{.gate_up = in<T>(gate_up),
                                    .y = out<T>(y),
                                    .rows = y.numel() / std::max<int64_t>(shape.back(), 1),
                                    .f = shape.back()});
    });
    ctx->save_for_backward({gate_up});
    return y;
  }
  static Variables backward(AutogradContext* ctx, Variables grads) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0], dy = grads[0].contiguous();
    const at::Tensor dgate_up = at::empty_like(gate_up);
    const int64_t f = dy.size(-1);
    with_kernel_type(dy.scalar_type(), "swiglu", [&]<class T>(T) {
      backend_for(gate_up).run(
          kernels::SwigluBackward<T>{.dy = in<T>(dy),
                                     .gate_up = in<T>(gate_up),
                                     .dgate_up = out<T>(dgate_up),
                                     .rows = dy.numel() / std::max<int64_t>(f, 1),
                                     .f = f});
    });
    return {dgate_up};
  }
};

/// The kernel's view of `heads` heads that start at head `first` of a stacked projection.
template <class T>
kernels::HeadRotation<T> rotation(const at::Tensor& qkv, int64_t first, int64_t heads, int64_t d,
                                  const RopeTable& rope, const at::Tensor& positions) {
  const int64_t t = qkv.size(1), width = qkv.size(2);
  kernels::HeadRotation<T> p;
  p.in_places = {.t = t, .batch = t * width, .row = width, .head = d};
  p.rows = qkv.size(0) * t;
  p.heads = heads;
  p.d = d;
  p.rotary = rope.cos_pf.defined() ? 2 * rope.cos_pf.size(1) : 0;
  if (p.rotary > 0) {
    p.cos = rope.cos_pf.const_data_ptr<float>();
    p.sin = rope.sin_pf.const_data_ptr<float>();
    p.positions = positions.const_data_ptr<int64_t>();
  }
  p.in = in<T>(qkv) + first * d;
  return p;
}

/// Places of heads in x [b, heads, t, d] of any strides with a contiguous last axis.
kernels::HeadPlaces places_of(const at::Tensor& x) {
  return {.t = x.size(2), .batch = x.stride(0), .row = x.stride(2), .head = x.stride(1)};
}

class SplitHeads : public Function<SplitHeads> {
 public:
  static Variables forward(AutogradContext* ctx, const at::Tensor& qkv_in,
                           const std::optional<at::Tensor>& q_gain_in,
                           const std::optional<at::Tensor>& k_gain_in, int64_t heads,
                           int64_t kv_heads, int64_t d, double eps, const RopeTable& rope,
                           const at::Tensor& positions) {
    const at::Tensor qkv = qkv_in.contiguous();
    const at::Tensor q_gain = q_gain_in.value_or(at::Tensor()),
                     k_gain = k_gain_in.value_or(at::Tensor());
    const int64_t b = qkv.size(0), t = qkv.size(1);
    // [b, t, heads, d] in memory: attention reads and writes whole tokens, and the output needs no
    // transpose.
    const auto empty = [&](int64_t n) {
      return at::empty({b, t, n, d}, qkv.options()).transpose(1, 2);
    };
    const at::Tensor q = empty(heads), k = empty(kv_heads);
    const at::Tensor v = qkv.narrow(2, (heads + kv_heads) * d, kv_heads * d)
                             .contiguous()
                             .view({b, t, kv_heads, d})
                             .transpose(1, 2);
    const auto norms = [&](int64_t n) {
      return at::empty({b * t, n}, qkv.options().dtype(at::kFloat));
    };
    const at::Tensor q_rstd = q_gain.defined() ? norms(heads) : at::Tensor(),
                     k_rstd = k_gain.defined() ? norms(kv_heads) : at::Tensor();
    const auto rotate = [&](const at::Tensor& y, int64_t first, const at::Tensor& gain,
                            const at::Tensor& rstd) {
      with_kernel_type(qkv.scalar_type(), "split_heads", [&]<class T>(T) {
        auto p = rotation<T>(qkv, first, y.size(1), d, rope, positions);
        p.out = out<T>(y);
        p.out_places = places_of(y);
        p.gain = gain.defined() ? gain.const_data_ptr<float>() : nullptr;
        p.rstd = gain.defined() ? rstd.mutable_data_ptr<float>() : nullptr;
        p.eps = static_cast<float>(eps);
        backend_for(qkv).run(p);
      });
    };
    rotate(q, 0, q_gain, q_rstd);
    rotate(k, heads, k_gain, k_rstd);
    // Without a norm the backward pass needs no input, only its shape.
    const at::Tensor kept =
        q_gain.defined() || k_gain.defined() ? qkv : at::empty({0}, qkv.options());
    ctx->save_for_backward(
        {kept, q_gain, k_gain, q_rstd, k_rstd, rope.cos_pf, rope.sin_pf, positions});
    ctx->saved_data["shape"] = qkv.sizes().vec();
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["kv_heads"] = kv_heads;
    return {q, k, v};
  }
  static Variables backward(AutogradContext* ctx, Variables grads) {
    const Variables saved = ctx->get_saved_variables();
    const int64_t heads = ctx->saved_data["heads"].toInt(),
                  kv_heads = ctx->saved_data["kv_heads"].toInt();
    const at::Tensor &q_gain = saved[1], &k_gain = saved[2];
    const RopeTable rope{saved[5], saved[6]};
    const auto shape = ctx->saved_data["shape"].toIntVector();
    const at::Tensor dqkv = at::empty(shape, saved[0].options());
    const int64_t d = shape[2] / (heads + 2 * kv_heads);
    Variables result(9);
    const auto rotate = [&](const at::Tensor& grad_in, int64_t first, int64_t n,
                            const at::Tensor& gain, const at::Tensor& rstd) {
      if (!grad_in.defined()) {
        dqkv.narrow(2, first * d, n * d).zero_();
        return gain.defined() ? at::zeros_like(gain) : at::Tensor();
      }
      const at::Tensor grad = grad_in.stride(3) == 1 ? grad_in : grad_in.contiguous();
      const at::Tensor dgain = gain.defined() ? at::empty_like(gain) : at::Tensor();
      with_kernel_type(dqkv.scalar_type(), "split_heads", [&]<class T>(T) {
        auto p = rotation<T>(dqkv, first, n, d, rope, saved[7]);
        p.din = out<T>(dqkv) + first * d;
        p.dout = in<T>(grad);
        p.out_places = places_of(grad);
        if (gain.defined()) {
          p.in = in<T>(saved[0]) + first * d;
          p.gain = gain.const_data_ptr<float>();
          p.dgain = dgain.mutable_data_ptr<float>();
          p.rstd = rstd.mutable_data_ptr<float>();
        }
        backend_for(dqkv).run(p);
      });
      return dgain;
    };
    result[1] = rotate(grads[0], 0, heads, q_gain, saved[3]);
    result[2] = rotate(grads[1], heads, kv_heads, k_gain, saved[4]);
    const at::Tensor dv = dqkv.narrow(2, (heads + kv_heads) * d, kv_heads * d)
                              .view({shape[0], shape[1], kv_heads, d});
    if (grads[2].defined()) {
      dv.copy_(grads[2].transpose(1, 2));
    } else {
      dv.zero_();
    }
    result[0] = dqkv;
    return result;
  }
};

/// Scales and caps logits in place; the derivative where it will be needed.
at::Tensor apply_rule(const LogitTransform& rule, at::Tensor& logits, bool gradient) {
  if (rule.cap <= 0.0) {
    logits.mul_(rule.scale);
    return gradient ? at::scalar_tensor(rule.scale, logits.options()) : at::Tensor();
  }
  logits.mul_(rule.scale / rule.cap).tanh_();
  const at::Tensor slope =
      gradient ? logits.square().neg_().add_(1.0).mul_(rule.scale) : at::Tensor();
  logits.mul_(rule.cap);
  return slope;
}

/// What kernels::CrossEntropy does, by operations on the logits' device: nll and lse of rows;
/// under `gradient` the logits become their gradients.
void cross_entropy_by_operations(at::Tensor& logits, const at::Tensor& targets, at::Tensor nll,
                                 at::Tensor lse, bool gradient, double scale, double z_loss) {
  at::Tensor wide = logits.to(at::kFloat);
  const at::Tensor sum = wide.logsumexp(1, /*keepdim=*/true), known = targets.ge(0).unsqueeze(1),
                   target = targets.clamp_min(0).unsqueeze(1);
  nll.copy_((sum - wide.gather(1, target)).mul_(known).squeeze(1));
  lse.copy_(sum.mul(known).squeeze(1));
  if (!gradient) return;
  wide = wide.sub_(sum).exp_();
  if (z_loss > 0.0) wide.mul_(sum.mul(2.0 * z_loss).add_(1.0));
  wide.scatter_add_(1, target, at::full_like(sum, -1.0));
  logits.copy_(wide.mul_(known.to(at::kFloat).mul_(scale)));
}

class LinearCrossEntropy : public Function<LinearCrossEntropy> {
 public:
  static Variables forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& weight,
                           const at::Tensor& targets, double scale, int64_t chunk, bool gradient,
                           const LogitTransform& rule) {
    const int64_t rows = hidden.size(0), v = weight.size(0);
    const at::Tensor nll = at::empty({rows}, hidden.options().dtype(at::kFloat));
    const at::Tensor lse = at::empty_like(nll);
    const at::Tensor w = unpacked(weight, hidden.scalar_type());
    const at::Tensor dhidden = gradient ? at::empty_like(hidden) : at::Tensor();
    at::Tensor dweight;
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const int64_t n = std::min(chunk, rows - begin);
      const at::Tensor h = hidden.narrow(0, begin, n);
      at::Tensor logits = linear_product(h, w);
      const at::Tensor slope = rule.plain() ? at::Tensor() : apply_rule(rule, logits, gradient);
      if (!has_kernel<kernels::CrossEntropy>(logits)) {
        cross_entropy_by_operations(logits, targets.narrow(0, begin, n), nll.narrow(0, begin, n),
                                    lse.narrow(0, begin, n), gradient, scale, rule.z_loss);
      } else {
        with_kernel_type(logits.scalar_type(), "linear_cross_entropy", [&]<class T>(T) {
          backend_for(logits).run(
              kernels::CrossEntropy<T>{.logits = out<T>(logits),
                                       .targets = targets.const_data_ptr<int64_t>() + begin,
                                       .nll = nll.mutable_data_ptr<float>() + begin,
                                       .lse = lse.mutable_data_ptr<float>() + begin,
                                       .rows = n,
                                       .v = v,
                                       .gradient = gradient,
                                       .scale = static_cast<float>(scale),
                                       .z_loss = static_cast<float>(rule.z_loss)});
        });
      }
      if (!gradient) continue;
      if (slope.defined()) logits.mul_(slope);
      at::Tensor dh = dhidden.narrow(0, begin, n);
      if (hidden.is_cpu() && bfloat16_product() == Bfloat16Product::widened &&
          hidden.scalar_type() == at::kBFloat16) {
        dh.copy_(widened_product(logits, w.t()));
      } else {
        at::mm_out(dh, logits, w);
      }
      if (!weight.requires_grad()) continue;  // a frozen base
      const at::Tensor dw = weight_gradient(logits, h).to(weight.scalar_type());
      dweight = dweight.defined() ? dweight.add_(dw) : dw;
    }
    if (gradient) ctx->save_for_backward({dhidden, dweight});
    ctx->mark_non_differentiable({nll, lse});
    at::Tensor total = nll.sum(at::kDouble);
    if (rule.z_loss > 0.0) total += lse.square().sum(at::kDouble) * rule.z_loss;
    return {total.mul(scale).to(at::kFloat), nll, lse};
  }
  static Variables backward(AutogradContext* ctx, Variables grads) {
    const Variables saved = ctx->get_saved_variables();
    // The usual seed is 1; multiplying then would only cost two passes over memory.
    const bool one = grads[0].is_cpu() && grads[0].item<float>() == 1.0f;
    const auto scaled = [&](const at::Tensor& g) {
      return one || !g.defined() ? g : g * grads[0].to(g.scalar_type());
    };
    return {scaled(saved[0]), scaled(saved[1]), at::Tensor(), at::Tensor(),
            at::Tensor(),     at::Tensor(),     at::Tensor()};
  }
};

at::Tensor keep_mask(const at::Tensor& x, double p, uint64_t seed, uint64_t site) {
  const int64_t n = x.numel();
  const at::Tensor mask = at::empty({n}, at::kFloat);
  float* keep = mask.mutable_data_ptr<float>();
  const float scale = static_cast<float>(1.0 / (1.0 - p)), limit = static_cast<float>(p);
#pragma omp parallel for schedule(static) if (n > 4096)
  for (int64_t block = 0; block < (n + 3) / 4; ++block) {
    const PhiloxBlock bits = philox(seed, static_cast<uint64_t>(block), site);
    for (int64_t i = 4 * block; i < std::min(n, 4 * block + 4); ++i) {
      keep[i] = uniform01(bits[static_cast<size_t>(i & 3)]) >= limit ? scale : 0.0f;
    }
  }
  return mask.view(x.sizes()).to(x.options());
}

/// Matrices [., inputs] one after the other: a view where they lie so and nothing is
/// differentiated.
at::Tensor stacked(const std::vector<at::Tensor>& matrices) {
  const at::Tensor& first = matrices.front();
  if (matrices.size() == 1) return first;
  int64_t numbers = 0;
  for (const at::Tensor& w : matrices) {
    const bool behind = w.dim() == 2 && w.is_contiguous() && w.size(1) == first.size(1) &&
                        w.scalar_type() == first.scalar_type() && w.is_alias_of(first) &&
                        w.storage_offset() == first.storage_offset() + numbers;
    if (!behind || at::GradMode::is_enabled()) return at::cat(matrices);
    numbers += w.numel();
  }
  return first.as_strided({numbers / first.size(1), first.size(1)}, {first.size(1), 1});
}

}  // namespace

at::Tensor stacked_linear(const at::Tensor& x_rc, const std::vector<at::Tensor>& weights,
                          kernels::Activations activations) {
  // Decoding: nothing is cast or stacked, every weight is read once.
  if (!at::GradMode::is_enabled() && is_few_rows(x_rc, weights, activations))
    return few_rows_product(x_rc, weights, x_rc.scalar_type(), activations);
  const OperatorScope scope(OperatorKind::product);
  if (std::ranges::any_of(weights, is_packed)) return packed_product(x_rc, weights, activations);
  if (!at::GradMode::is_enabled())
    return reading_product(x_rc, stacked(weights).to(x_rc.scalar_type()));
  return MasterLinear::apply(x_rc, stacked(weights));
}

at::Tensor rms_norm(const at::Tensor& x_rc, const at::Tensor& weight_c, double eps) {
  if (!has_kernel<kernels::RmsNormForward>(x_rc)) return plain_rms_norm(x_rc, weight_c, eps);
  return AddRmsNorm::apply(x_rc, std::optional<at::Tensor>(), weight_c, eps)[0];
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x_rc, const at::Tensor& delta_rc,
                                               const at::Tensor& weight_c, double eps) {
  if (!has_kernel<kernels::RmsNormForward>(x_rc)) {
    const at::Tensor sum = x_rc + delta_rc;
    return {sum, plain_rms_norm(sum, weight_c, eps)};
  }
  Variables result = AddRmsNorm::apply(x_rc, maybe(delta_rc), weight_c, eps);
  return {result[0], result[1]};
}

at::Tensor swiglu(const at::Tensor& gate_up_rf) {
  if (has_kernel<kernels::SwigluForward>(gate_up_rf)) return Swiglu::apply(gate_up_rf);
  const std::vector<at::Tensor> parts = gate_up_rf.chunk(2, -1);
  return at::silu(parts[0]) * parts[1];
}

Heads split_heads(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t head_dim,
                  const at::Tensor& q_gain_d, const at::Tensor& k_gain_d, double eps,
                  const RopeTable& rope, const at::Tensor& positions_bt) {
  if (has_kernel<kernels::HeadRotation>(qkv)) {
    Variables r = SplitHeads::apply(qkv, maybe(q_gain_d), maybe(k_gain_d), heads, kv_heads,
                                    head_dim, eps, rope, positions_bt.contiguous());
    return {r[0], r[1], r[2]};
  }
  const std::vector<at::Tensor> parts =
      qkv.split_with_sizes({heads * head_dim, kv_heads * head_dim, kv_heads * head_dim}, -1);
  const auto split = [&](const at::Tensor& x, int64_t n) { return x.unflatten(-1, {n, head_dim}); };
  at::Tensor q = split(parts[0], heads), k = split(parts[1], kv_heads);
  if (q_gain_d.defined()) q = plain_rms_norm(q, q_gain_d, eps);
  if (k_gain_d.defined()) k = plain_rms_norm(k, k_gain_d, eps);
  q = q.transpose(1, 2);
  k = k.transpose(1, 2);
  if (rope.cos_pf.defined()) {
    q = apply_rope(q, rope, positions_bt);
    k = apply_rope(k, rope, positions_bt);
  }
  return {q, k, split(parts[2], kv_heads).transpose(1, 2)};
}

CrossEntropyResult linear_cross_entropy(const at::Tensor& hidden_rc, const at::Tensor& weight_vc,
                                        const at::Tensor& targets_r, double scale, int64_t chunk,
                                        const LogitTransform& rule) {
  // Of a logit: largest, difference, exp, sum; its gradient in the same pass takes as many.
  const OperatorScope scope(
      OperatorKind::loss,
      [&] {
        const double logits = static_cast<double>(hidden_rc.size(0) * weight_vc.size(0));
        return logits * (at::GradMode::is_enabled() ? 8.0 : 4.0);
      },
      0.0);
  if (has_kernel<kernels::CrossEntropy>(hidden_rc) || on_gpu(hidden_rc)) {
    const bool gradient =
        at::GradMode::is_enabled() && (hidden_rc.requires_grad() || weight_vc.requires_grad());
    Variables r = LinearCrossEntropy::apply(hidden_rc, weight_vc, targets_r.contiguous(), scale,
                                            chunk, gradient, rule);
    return {.total = r[0], .nll_r = r[1], .ln_z_r = r[2]};
  }
  at::Tensor total;
  std::vector<at::Tensor> nll_rows, ln_z_rows;
  for (int64_t begin = 0; begin < hidden_rc.size(0); begin += chunk) {
    const int64_t n = std::min(chunk, hidden_rc.size(0) - begin);
    const at::Tensor h = hidden_rc.narrow(0, begin, n), target = targets_r.narrow(0, begin, n);
    const at::Tensor logits = at::linear(h, weight_vc.to(h.scalar_type()));
    at::Tensor wide = h.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
    if (rule.scale != 1.0) wide = wide * rule.scale;
    if (rule.cap > 0.0) wide = at::tanh(wide / rule.cap) * rule.cap;
    const at::Tensor picked = wide.gather(1, target.clamp_min(0).unsqueeze(1)).squeeze(1);
    const at::Tensor zero = at::zeros({}, wide.options()), lse = wide.logsumexp(1);
    const at::Tensor nll = at::where(target.ge(0), lse - picked, zero),
                     ln_z = at::where(target.ge(0), lse, zero);
    at::Tensor sum = nll.sum();
    if (rule.z_loss > 0.0) sum = sum + ln_z.square().sum() * rule.z_loss;
    total = total.defined() ? total + sum : sum;
    nll_rows.push_back(nll.detach());
    ln_z_rows.push_back(ln_z.detach());
  }
  return {.total = total * scale, .nll_r = at::cat(nll_rows), .ln_z_r = at::cat(ln_z_rows)};
}

at::Tensor counter_dropout(const at::Tensor& x, double p, uint64_t seed, uint64_t site) {
  if (p <= 0.0) return x;
  return x * keep_mask(x, p, seed, site);
}

}  // namespace fovea
