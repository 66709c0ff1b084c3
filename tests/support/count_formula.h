// Number of parameters of a decoder, by formula: what the registry must count.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/nn/model_config.h"

namespace fovea::testing {

// Parameters of one layer's stages 0, 3, 4, 5, 8, 9 and 10.
inline int64_t stage_parameters(const AttentionSpec& spec, int64_t width) {
  int64_t count = 0;
  for (const KernelExtent& extent : {spec.multi_token.before, spec.multi_token.after})
    count += spec.heads * extent.queries * extent.keys;
  if (spec.kv_shift.keys) count += 2 * spec.kv_heads;
  if (spec.kv_shift.values) count += 2 * spec.value_heads();
  for (const HeadMixSpec::Kind kind : {spec.head_mix.before, spec.head_mix.after})
    count += spec.heads * spec.head_mix.width(kind, spec.heads);
  if (spec.differential) count += 4 * spec.head_dim;
  if (spec.focus.active())
    count += spec.focus.width * (width + spec.focus.groups) + (spec.focus.reads_strength() ? 1 : 0);
  const int64_t e = spec.value_width();
  if (spec.head_output.norm != HeadOutputSpec::Norm::none) count += e;
  if (spec.head_output.gate == HeadOutputSpec::Gate::scalar) count += e + 1;
  if (spec.head_output.gate == HeadOutputSpec::Gate::full) count += e * e + e;
  return count;
}

inline int64_t counted_by_formula(const ModelConfig& c) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const int64_t matrices = gated(c.feed_forward) ? 3 : 2;
  int64_t layer = (2 * q + 2 * kv) * c.width + matrices * c.width * c.ffn_width;
  if (c.biases.qkv) layer += q + 2 * kv;
  if (c.biases.output) layer += c.width;
  if (c.biases.feed_forward) layer += (matrices - 1) * c.ffn_width + c.width;
  int64_t norm = c.width;
  if (c.norm == NormKind::layer) norm = 2 * c.width;
  if (c.norm == NormKind::rms_weightless || c.norm == NormKind::layer_weightless) norm = 0;
  const int64_t norms = c.block == BlockLayout::sandwich   ? 4
                        : c.block == BlockLayout::parallel ? 1
                                                           : 2;
  layer += norms * norm;
  if (c.qk_norm == QkNorm::head_rms || c.qk_norm == QkNorm::head_layer) layer += 2 * c.head_dim;
  if (c.qk_norm == QkNorm::full_rms) layer += q + kv;
  if (c.qk_norm == QkNorm::l2) layer += 1;
  if (c.attention.spec.sink_logit) layer += c.heads;
  if (c.attention.spec.temperature.kind == TemperatureSpec::Kind::learned)
    layer += 1 + (c.attention.spec.temperature.form == TemperatureSpec::Form::global ? 0 : c.width);
  int64_t total = c.layers * layer + c.vocab_size * c.width * (c.tied ? 1 : 2);
  for (int64_t l = 0; l < c.layers; ++l) total += stage_parameters(c.layer_attention(l), c.width);
  if (c.block != BlockLayout::post) total += norm;
  if (c.positions == Positions::learned) total += c.context * c.width;
  if (c.attention.spec.bias.kind == BiasSpec::Kind::t5)
    total += c.attention.spec.bias.buckets * c.heads;
  return total;
}

}  // namespace fovea::testing
