// Queries, keys and values of a layer: projection, normalisation (spec 7.3), rotation (6.1).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/attention/mechanism.h"
#include "fovea/nn/transformer_impl.h"
#include "fovea/runtime/operator_profile.h"

namespace fovea {
namespace {

using kernels::HeadNorm;

/// OLMo-2: one RMSNorm over all heads of the queries, one over all of the keys.
at::Tensor norm_over_heads(const at::Tensor& qkv, const LayerWeights& w, double eps) {
  const int64_t q = w.q_gain.numel(), k = w.k_gain.numel();
  return at::cat(
      {rms_norm(qkv.narrow(-1, 0, q), w.q_gain, eps), rms_norm(qkv.narrow(-1, q, k), w.k_gain, eps),
       qkv.narrow(-1, q + k, qkv.size(-1) - q - k)},
      -1);
}

/// [b, h, t, d], LayerNorm over d with a gain; in the memory order [b, t, h, d] of the projection.
at::Tensor layer_norm_of_heads(const at::Tensor& x_bhtd, const at::Tensor& gain_d, double eps) {
  return normalise(NormKind::layer_no_bias, x_bhtd.transpose(1, 2), {gain_d, {}}, eps)
      .transpose(1, 2);
}

/// Vectors of length `length` (a scalar tensor) times `factor`.
at::Tensor of_length(const at::Tensor& x, const at::Tensor& length, double factor) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor f = x.to(wide);
  constexpr double kTiny = 1e-24;  // of a squared length: zero vectors stay zero
  return (f * at::rsqrt(f.square().sum(-1, true).clamp_min(kTiny)) * (length.to(wide) * factor))
      .to(x.scalar_type());
}

}  // namespace

Heads heads_of(const ModelConfig& c, const LayerWeights& w, const at::Tensor& given,
               const PassContext& pass) {
  const BlockDescription& block = w.block;
  const OperatorScope scope(OperatorKind::elementwise, [&] {
    const int64_t rows = given.numel() / given.size(-1);
    const auto numbers = static_cast<double>(rows * (c.heads + c.kv_heads) * c.head_dim);
    return numbers *
           ((block.rotated ? 3.0 : 0.0) + (block.head_norm != HeadNorm::none ? 4.0 : 0.0));
  });
  const at::Tensor qkv =
      block.head_norm == HeadNorm::all_rms ? norm_over_heads(given, w, c.norm_eps) : given;
  at::Tensor q_gain, k_gain;
  if (block.head_norm == HeadNorm::rms) {
    const auto gain = [&](const at::Tensor& learned) {
      return learned.defined() ? learned
                               : at::ones({c.head_dim}, given.options().dtype(at::kFloat));
    };
    q_gain = gain(w.q_gain);
    k_gain = gain(w.k_gain);
  }
  const bool plain = reads_plain_heads(w.spec);
  const bool after =
      plain || block.head_norm == HeadNorm::layer || block.head_norm == HeadNorm::length;
  const RopeTable none;
  const RopeTable& table = block.rotated ? pass.rope : none;
  Heads heads = split_heads(qkv, c.heads, c.kv_heads, c.head_dim, q_gain, k_gain, c.norm_eps,
                            after || block.interleaved ? none : table, pass.positions);
  if (block.head_norm == HeadNorm::layer) {
    heads.q_bhtd = layer_norm_of_heads(heads.q_bhtd, w.q_gain, c.norm_eps);
    heads.k_bgtd = layer_norm_of_heads(heads.k_bgtd, w.k_gain, c.norm_eps);
  } else if (block.head_norm == HeadNorm::length) {
    heads.q_bhtd = of_length(heads.q_bhtd, w.qk_scale, block.length_factor);
    heads.k_bgtd = of_length(heads.k_bgtd, at::ones({}, heads.k_bgtd.options()), 1.0);
  }
  if (plain) {
    heads.plain_q_bhtd = heads.q_bhtd;
    heads.plain_k_bgtd = heads.k_bgtd;
  }
  if (block.rotated && (after || block.interleaved)) {
    for (at::Tensor* x : {&heads.q_bhtd, &heads.k_bgtd}) {
      if (block.interleaved) *x = heads_to_half_split(*x, c.rope.rotary_dim);
      *x = apply_rope(*x, table, pass.positions);
    }
  }
  if (w.spec.differential) heads.v_bgtd = paired_values(heads.v_bgtd);
  return heads;
}

at::Tensor paired_values(const at::Tensor& v_bgtd) {
  return v_bgtd.unflatten(1, {v_bgtd.size(1) / 2, 2}).transpose(2, 3).flatten(3);
}

Heads Transformer::Impl::project(const LayerWeights& w, const at::Tensor& y,
                                 const PassContext& pass) const {
  at::Tensor qkv = stacked_linear(y, {w.wq, w.wk, w.wv}, {w.bq, w.bk, w.bv}, compute.activations);
  qkv = adapted(w, {LoraSite::q_proj, LoraSite::k_proj, LoraSite::v_proj}, qkv, y, pass);
  return heads_of(config, w, adapted(w, {LoraSite::qkv_proj}, qkv, y, pass), pass);
}

}  // namespace fovea
