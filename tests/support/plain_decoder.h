// An independent decoder for tests: the formulas of spec 6 and 7 in float64, one tensor operation
// after the other, on the parameters of a registry.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "fovea/kernels/common/mask_rule.h"
#include "fovea/nn/transformer.h"

namespace fovea::testing {

class PlainDecoder {
 public:
  PlainDecoder(const ModelConfig& config, const ParameterRegistry& registry)
      : c_(config), registry_(registry) {}

  /// Logits [t, v] of the tokens [t].
  at::Tensor logits(const at::Tensor& tokens) {
    t_ = tokens.size(0);
    at::Tensor x = get("model.embed_tokens.weight").index({tokens});
    x = x * (c_.embedding_scale == 0 ? std::sqrt(double(c_.width)) : c_.embedding_scale);
    if (c_.positions == Positions::learned)
      x = x + get("model.embed_positions.weight").narrow(0, 0, t_);
    if (c_.positions == Positions::sinusoidal) x = x + sinusoids();
    for (int64_t l = 0; l < c_.layers; ++l) x = block(x, l);
    if (c_.block != BlockLayout::post) x = norm(x, "model.norm");
    const at::Tensor head = get(c_.tied ? "model.embed_tokens.weight" : "lm_head.weight");
    at::Tensor z = x.matmul(head.t()) * c_.logit_scale;
    return c_.logit_cap > 0 ? c_.logit_cap * at::tanh(z / c_.logit_cap) : z;
  }

 private:
  at::Tensor get(const std::string& name) const {
    const Parameter* p = registry_.find(name);
    return p == nullptr ? at::Tensor() : p->value.detach().to(at::kDouble);
  }
  std::string in(int64_t l, const char* name) const {
    return fmt::format("model.layers.{}.{}", l, name);
  }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    const at::Tensor b = get(name + ".bias"), y = x.matmul(get(name + ".weight").t());
    return b.defined() ? y + b : y;
  }
  at::Tensor sinusoids() const {
    at::Tensor table = at::zeros({t_, c_.width}, at::kDouble);
    for (int64_t p = 0; p < t_; ++p) {
      for (int64_t k = 0; k < c_.width; ++k) {
        const double angle = double(p) / std::pow(10000.0, double(k / 2 * 2) / double(c_.width));
        table[p][k] = k % 2 == 0 ? std::sin(angle) : std::cos(angle);
      }
    }
    return table;
  }

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    const bool rms = c_.norm == NormKind::rms || c_.norm == NormKind::rms_weightless;
    const at::Tensor centred = rms ? x : x - x.mean(-1, true);
    at::Tensor y = centred / at::sqrt((centred * centred).mean(-1, true) + c_.norm_eps);
    if (const at::Tensor w = get(name + ".weight"); w.defined()) y = y * w;
    if (const at::Tensor b = get(name + ".bias"); b.defined()) y = y + b;
    return y;
  }

  at::Tensor block(at::Tensor x, int64_t l) {
    const std::string first = in(l, "input_layernorm"), after = in(l, "post_attention_layernorm"),
                      pre = in(l, "pre_feedforward_layernorm"),
                      post = in(l, "post_feedforward_layernorm");
    const auto before = [&](const at::Tensor& y, const std::string& name) {
      const double depth = double(l);
      const bool lambda = c_.norm_depth_scale == HeadOutputSpec::DepthScale::lambda;
      const double factor =
          lambda ? 0.2 + 0.6 * std::exp(-0.3 * depth) : 1.0 / std::sqrt(depth + 1);
      const bool none = c_.norm_depth_scale == HeadOutputSpec::DepthScale::none;
      return none ? norm(y, name) : norm(y, name) * factor;
    };
    switch (c_.block) {
      case BlockLayout::pre:
        x = x + attention(before(x, first), l);
        return x + ffn(before(x, after), l);
      case BlockLayout::post:
        x = norm(x + attention(x, l), after);
        return norm(x + ffn(x, l), post);
      case BlockLayout::sandwich:
        x = x + norm(attention(before(x, first), l), after);
        return x + norm(ffn(before(x, pre), l), post);
      case BlockLayout::output:
        x = x + norm(attention(x, l), after);
        return x + norm(ffn(x, l), post);
      case BlockLayout::parallel:
        return x + attention(before(x, first), l) + ffn(before(x, first), l);
      case BlockLayout::parallel_two:
        return x + attention(before(x, first), l) + ffn(before(x, after), l);
    }
    return x;
  }

  at::Tensor ffn(const at::Tensor& z, int64_t l) const {
    const at::Tensor up = linear(z, in(l, "mlp.up_proj"));
    const at::Tensor a = gated(c_.feed_forward) ? linear(z, in(l, "mlp.gate_proj")) : up;
    const auto exact_gelu = [](const at::Tensor& u) {
      return 0.5 * u * (1.0 + at::erf(u / std::sqrt(2.0)));
    };
    const auto tanh_gelu = [](const at::Tensor& u) {
      return 0.5 * u * (1.0 + at::tanh(std::sqrt(2.0 / M_PI) * (u + 0.044715 * u * u * u)));
    };
    const at::Tensor sigmoid = 1.0 / (1.0 + at::exp(-a)), positive = a.clamp_min(0.0);
    at::Tensor y;
    switch (c_.feed_forward) {
      case FeedForward::relu:
      case FeedForward::reglu:
        y = positive;
        break;
      case FeedForward::relu_squared:
        y = positive * positive;
        break;
      case FeedForward::gelu:
      case FeedForward::geglu:
        y = exact_gelu(a);
        break;
      case FeedForward::gelu_tanh:
      case FeedForward::geglu_tanh:
        y = tanh_gelu(a);
        break;
      case FeedForward::silu:
      case FeedForward::swiglu:
        y = a * sigmoid;
        break;
      case FeedForward::elu:
        y = at::where(a > 0, a, at::exp(a) - 1.0);
        break;
      case FeedForward::glu:
        y = sigmoid;
        break;
    }
    return linear(gated(c_.feed_forward) ? y * up : y, in(l, "mlp.down_proj"));
  }

  /// One head [t, d], rotated pair by pair.
  at::Tensor rotated(const at::Tensor& x) const {
    const int64_t width = c_.rope.rotary_dim > 0 ? c_.rope.rotary_dim : c_.head_dim;
    const bool neighbours = c_.rope.layout == RopeLayout::interleaved;
    at::Tensor y = x.clone();
    for (int64_t k = 0; k < width / 2; ++k) {
      const int64_t a = neighbours ? 2 * k : k, b = neighbours ? 2 * k + 1 : k + width / 2;
      const at::Tensor angle =
          at::arange(t_, at::kDouble) * std::pow(c_.rope.theta, -2.0 * double(k) / double(width));
      y.select(1, a).copy_(x.select(1, a) * angle.cos() - x.select(1, b) * angle.sin());
      y.select(1, b).copy_(x.select(1, a) * angle.sin() + x.select(1, b) * angle.cos());
    }
    return y;
  }

  /// Heads [n, t, d] with QK-norm and rotation; `which` is q or k.
  at::Tensor heads(at::Tensor x, int64_t n, int64_t l, const char* which) const {
    const at::Tensor gain = get(in(l, fmt::format("self_attn.{}_norm.weight", which).c_str()));
    const auto rms = [&](const at::Tensor& u) {
      return u / at::sqrt((u * u).mean(-1, true) + c_.norm_eps);
    };
    if (c_.qk_norm == QkNorm::full_rms) x = rms(x) * gain;
    x = x.view({t_, n, c_.head_dim}).transpose(0, 1);
    if (c_.qk_norm == QkNorm::head_rms) x = rms(x) * gain;
    if (c_.qk_norm == QkNorm::head_layer) x = rms(x - x.mean(-1, true)) * gain;
    if (c_.qk_norm == QkNorm::l2) x = x / at::sqrt((x * x).sum(-1, true));
    std::vector<at::Tensor> out;
    for (int64_t h = 0; h < n; ++h) out.push_back(c_.rotated(l) ? rotated(x[h]) : x[h]);
    x = at::stack(out);
    // Llama-4's order: after the rotation.
    return c_.qk_norm == QkNorm::weightless && c_.rotated(l) ? rms(x) : x;
  }

  at::Tensor attention(const at::Tensor& y, int64_t l) const {
    const at::Tensor q = heads(linear(y, in(l, "self_attn.q_proj")), c_.heads, l, "q"),
                     k = heads(linear(y, in(l, "self_attn.k_proj")), c_.kv_heads, l, "k"),
                     v = linear(y, in(l, "self_attn.v_proj"))
                             .view({t_, c_.kv_heads, c_.head_dim})
                             .transpose(0, 1);
    const MaskRule rule = c_.attention.full.contains(l) ? MaskRule{} : c_.attention.spec.mask;
    at::Tensor hidden = at::zeros({t_, t_}, at::kBool);
    for (int64_t i = 0; i < t_; ++i) {
      for (int64_t j = 0; j < t_; ++j) hidden[i][j] = !allowed(rule, {0, i}, {0, j});
    }
    const at::Tensor g = get(in(l, "self_attn.qk_scale"));
    const double root = std::sqrt(double(c_.head_dim));
    std::vector<at::Tensor> out;
    for (int64_t h = 0; h < c_.heads; ++h) {
      const int64_t kv = h / (c_.heads / c_.kv_heads);
      const at::Tensor product = q[h].matmul(k[kv].t());
      const at::Tensor s = (g.defined() ? product * g : product / root).masked_fill(hidden, -1e300);
      out.push_back(at::softmax(s, -1).matmul(v[kv]));
    }
    return linear(at::cat(out, 1), in(l, "self_attn.o_proj"));
  }

  ModelConfig c_;
  const ParameterRegistry& registry_;
  int64_t t_ = 0;
};

}  // namespace fovea::testing
