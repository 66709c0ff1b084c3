// Which parameters a decoder has, under which names, and how they start (spec 3.5, 7.1 to 7.4).
//
// Names are Hugging Face's of LLaMA, Qwen, OLMo-2 and Gemma-2, whatever the options.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "fovea/attention/mechanism.h"
#include "fovea/nn/mechanisms/mechanism.h"
#include "fovea/nn/memory_needs.h"
#include "fovea/nn/transformer_impl.h"
#include "fovea/runtime/memory_limit.h"

namespace fovea {
namespace {

/// What a matrix does, as far as its start depends on it.
enum class Role { projection, feed_forward_out, residual, embedding };

Init matrix_init(const ModelConfig& c, Role role, int64_t inputs, double scale) {
  const bool to_residual = role == Role::residual || role == Role::feed_forward_out;
  switch (c.init.kind) {
    case InitSpec::Kind::width: {
      const int64_t n = role == Role::feed_forward_out ? c.ffn_width : c.width;
      return {Init::Kind::truncated_normal, 1.0 / std::sqrt(static_cast<double>(n)), scale};
    }
    case InitSpec::Kind::fan_in:
      return {Init::Kind::truncated_normal, 1.0 / std::sqrt(static_cast<double>(inputs)), scale};
    case InitSpec::Kind::torch:
      if (role == Role::embedding) return {Init::Kind::normal, 1.0, scale};
      return {Init::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(inputs)), scale};
    case InitSpec::Kind::normal:
      return {Init::Kind::normal, c.init.std, scale};
    case InitSpec::Kind::gpt2:
      return {
          Init::Kind::normal,
          to_residual ? c.init.std / std::sqrt(2.0 * static_cast<double>(c.layers)) : c.init.std,
          scale};
  }
  return {};
}

/// Registers the parameters of one layer, or of the model where `prefix` says so.
struct Builder {
  const ModelConfig& c;
  ParameterRegistry& registry;
  std::string prefix;

  at::Tensor matrix(const char* name, int64_t out, int64_t in, Role role,
                    double scale = 1.0) const {
    return registry.add({.name = prefix + name, .init = matrix_init(c, role, in, scale)}, {out, in})
        .value;
  }
  at::Tensor gain(const char* name, int64_t n, double scale = 1.0) const {
    return registry
        .add({.name = prefix + name, .decay = false, .init = {Init::Kind::ones, 0.0, scale}}, {n})
        .value;
  }
  at::Tensor bias(const char* name, bool present, int64_t n, int64_t inputs) const {
    if (!present) return {};
    const bool uniform = c.init.kind == InitSpec::Kind::torch && inputs > 0;
    const Init init =
        uniform ? Init{Init::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(inputs))} : Init{};
    return registry.add({.name = prefix + name, .decay = false, .init = init}, {n}).value;
  }
  at::Tensor added(const char* name, at::IntArrayRef shape, double start) const {
    return registry
        .add({.name = prefix + name,
              .origin = Parameter::Origin::added,
              .decay = false,
              .init = {Init::Kind::constant, start, 1.0}},
             shape)
        .value;
  }
  NormWeights norm(const std::string& name) const {
    NormWeights w;
    if (c.norm == NormKind::rms || c.norm == NormKind::layer || c.norm == NormKind::layer_no_bias)
      w.weight_c = gain((name + ".weight").c_str(), c.width);
    // A norm's bias has no inputs and starts at 0 in every scheme.
    w.bias_c = bias((name + ".bias").c_str(), c.norm == NormKind::layer, c.width, 0);
    return w;
  }

  void norms(LayerWeights& w) const {
    const NormPlaces& places = w.block.norms;
    if (places.attention_in) w.attention_in = norm("input_layernorm");
    if (places.attention_out) w.attention_out = norm("post_attention_layernorm");
    // After attention comes one of two: the names are those of the models that have them.
    if (places.ffn_in)
      w.ffn_in =
          norm(places.attention_out ? "pre_feedforward_layernorm" : "post_attention_layernorm");
    if (places.ffn_out) w.ffn_out = norm("post_feedforward_layernorm");
  }
  void projections(LayerWeights& w) const {
    const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    // F-5: the length of queries lies in their norm's gain where there is one.
    const bool scaled_later = c.qk_norm != QkNorm::none;
    w.wq = matrix("self_attn.q_proj.weight", q, c.width, Role::projection,
                  scaled_later ? 1.0 : c.query_init);
    w.wk = matrix("self_attn.k_proj.weight", kv, c.width, Role::projection);
    w.wv = matrix("self_attn.v_proj.weight", kv, c.width, Role::projection);
    w.wo = matrix("self_attn.o_proj.weight", c.width, q, Role::residual);
    w.bq = bias("self_attn.q_proj.bias", c.biases.qkv, q, c.width);
    w.bk = bias("self_attn.k_proj.bias", c.biases.qkv, kv, c.width);
    w.bv = bias("self_attn.v_proj.bias", c.biases.qkv, kv, c.width);
    w.bo = bias("self_attn.o_proj.bias", c.biases.output, c.width, q);
    if (c.qk_norm == QkNorm::l2) {
      // g0 = log2(n^2 - n) for n positions (Henry et al. 2020, section 3).
      const auto n = static_cast<double>(std::max<int64_t>(c.context, 2));
      w.qk_scale = registry
                       .add({.name = prefix + "self_attn.qk_scale",
                             .decay = false,
                             .init = {Init::Kind::constant, std::log2(n * n - n), c.query_init}},
                            {})
                       .value;
    } else if (c.qk_norm != QkNorm::none && c.qk_norm != QkNorm::weightless) {
      const bool full = c.qk_norm == QkNorm::full_rms;
      w.q_gain = gain("self_attn.q_norm.weight", full ? q : c.head_dim, c.query_init);
      w.k_gain = gain("self_attn.k_norm.weight", full ? kv : c.head_dim);
    }
  }
  void feed_forward(LayerWeights& w) const {
    const bool b = c.biases.feed_forward;
    if (gated(c.feed_forward)) {
      w.gate = matrix("mlp.gate_proj.weight", c.ffn_width, c.width, Role::projection);
      w.gate_bias = bias("mlp.gate_proj.bias", b, c.ffn_width, c.width);
    }
    w.up = matrix("mlp.up_proj.weight", c.ffn_width, c.width, Role::projection);
    w.up_bias = bias("mlp.up_proj.bias", b, c.ffn_width, c.width);
    w.down = matrix("mlp.down_proj.weight", c.width, c.ffn_width, Role::feed_forward_out);
    w.down_bias = bias("mlp.down_proj.bias", b, c.width, c.ffn_width);
  }
};

// In the simplest terms.
AttentionSpec spec_of_layer(const ModelConfig& config, int64_t index,
                            const BlockDescription& block) {
  AttentionSpec spec = in_mask_terms(config.layer_attention(index));
  const KeyPattern* pattern = key_pattern(spec);
  // Without them nothing in the layer tells distances.
  const bool tells_distances = block.rotated || spec.bias.kind != BiasSpec::Kind::none;
  if (pattern != nullptr && !tells_distances) pattern->to_mask(spec, /*plain=*/true);
  return spec;
}

}  // namespace

LayerWeights Transformer::Impl::add_layer(int64_t index) {
  const Builder build{config, registry, fmt::format("model.layers.{}.", index)};
  LayerWeights w;
  w.block = describe_block(config, index);
  w.spec = spec_of_layer(config, index, w.block);
  build.norms(w);
  build.projections(w);
  for (const LearnedMechanism& mechanism : learned_mechanisms()) {
    mechanism.build({.registry = registry,
                     .config = config,
                     .spec = w.spec,
                     .index = index,
                     .mechanism = mechanism.name},
                    w);
  }
  build.feed_forward(w);
  if (config.lora.active()) w.lora = add_lora(registry, config.lora, lora, index);
  return w;
}

Transformer::Impl::Impl(const ModelConfig& c, uint64_t seed, at::Device d, FirstNumbers first)
    : config(c), device(d), registry(seed, d, first) {
  if (d.is_cpu()) {
    const double least = first == FirstNumbers::drawn ? 4.0 : 2.0;  // bytes of a number
    require_memory(
        "the model's weights and tables of positions",
        least * static_cast<double>(parameter_count(c)) + position_table_bytes(c, c.context));
  }
  const Builder build{config, registry, ""};
  embedding = build.matrix("model.embed_tokens.weight", c.vocab_size, c.width, Role::embedding);
  if (c.positions == Positions::learned) {
    position_table =
        build.matrix("model.embed_positions.weight", c.context, c.width, Role::embedding);
  } else if (c.positions == Positions::sinusoidal && !d.is_meta()) {
    position_table = sinusoidal_table(c.context, c.width).to(d);
  }
  lora = lora_places(c.lora, c);
  for (int64_t i = 0; i < c.layers; ++i) layers.push_back(add_layer(i));
  if (c.block != BlockLayout::post) final_norm = build.norm("model.norm");
  head =
      c.tied ? embedding : build.matrix("lm_head.weight", c.vocab_size, c.width, Role::projection);
  if (c.attention.spec.bias.kind == BiasSpec::Kind::t5) {
    bias_table = build.added("model.relative_attention_bias.weight",
                             {c.attention.spec.bias.buckets, c.heads}, 0.0);
  }
  if (c.positions == Positions::rope && !d.is_meta())
    rope = make_rope_table(c.rope, c.head_dim, c.context, d);
}

int64_t parameter_count(const ModelConfig& resolved) {
  return Transformer(resolved, 0, at::kMeta).parameters().count();
}

}  // namespace fovea
