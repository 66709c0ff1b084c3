// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/model_config.h"

#include <algorithm>

#include "fovea/attention/mechanism.h"
#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/nn/lora.h"
#include "fovea/nn/mechanisms/model_mechanism.h"

namespace fovea {
namespace {

// A width or vocabulary beyond these is a typing error: the largest published models stay an order
// below.
constexpr int64_t kLargestWidth = 1 << 17, kLargestVocab = 1 << 22, kLargestHead = 4096;

/// The feed-forward width of the notes: 8/3 width with three matrices, 4 width with two.
int64_t matched_width(const ModelConfig& c) {
  const int64_t wanted = gated(c.feed_forward) ? 8 * c.width / 3 : 4 * c.width, m = c.ffn_multiple;
  return std::max(m, (wanted + m / 2) / m * m);
}

/// Combinations without a meaning.
void check_options(const ModelConfig& c) {
  check_range("attention.full.every", c.attention.full.every, 0, c.layers);
  for (const int64_t layer : c.attention.full.layers)
    check_range("attention.full.layers", layer, 0, c.layers - 1);
  if (c.positions == Positions::rope) c.rope.check(c.head_dim);
  const std::string bias(enum_name(c.attention.spec.bias.kind)), positions(enum_name(c.positions));
  require<ConfigError>(
      c.positions == Positions::none || c.attention.spec.bias.kind == BiasSpec::Kind::none, "model",
      "'model.attention.bias.kind: {}' already says where tokens stand; 'model.positions' must be "
      "none with it; got {}",
      bias, positions);
  require<ConfigError>(
      c.positions == Positions::rope || c.rope == RopeSpec{}, "model",
      "'model.rope' is for 'model.positions: rope'; got keys of it with positions {}", positions);
  require<ConfigError>(c.qk_norm != QkNorm::weightless || c.positions == Positions::rope, "model",
                       "'model.qk_norm: weightless' acts on layers with RoPE; got positions {}",
                       positions);
  require<ConfigError>(
      c.qk_norm != QkNorm::weightless || c.query_init == 1.0, "model",
      "'model.query_init' must be 1 with 'model.qk_norm: weightless', which erases "
      "the length of queries; got {}",
      c.query_init);
  require<ConfigError>(c.norm_depth_scale == HeadOutputSpec::DepthScale::none ||
                           (c.block != BlockLayout::post && c.block != BlockLayout::output),
                       "model",
                       "'model.norm_depth_scale: {}' scales the norms before attention and "
                       "feed-forward; 'model.block: "
                       "{}' has none; use pre, sandwich, parallel or parallel_two, or remove it",
                       enum_name(c.norm_depth_scale), enum_name(c.block));
  const FullLayers& full = c.attention.full;
  require<ConfigError>(!full.any() || c.attention.spec.mask != MaskRule{}, "model",
                       "'model.attention.full' picks layers that the local mask does not hold for; "
                       "set 'model.attention.mask' (window, strided or fixed) or remove it");
  require<ConfigError>(
      full.positions || (full.any() && c.positions == Positions::rope), "model",
      "'model.attention.full.positions: false' takes RoPE from the full layers; it "
      "needs 'model.positions: rope' and full layers");
}

}  // namespace

void AttentionSettings::describe(FieldVisitor& v) {
  v.reals({"temperature_per_layer", "constant t of each layer; empty: temperature.value in all",
           ranges::kPositive},
          temperature_per_layer);
  for (const Mechanism* mechanism : mechanisms()) {
    const auto around = std::ranges::find_if(
        model_mechanisms(), [&](const ModelMechanism& m) { return &m.mechanism() == mechanism; });
    if (around == model_mechanisms().end() || around->describe == nullptr) {
      mechanism->describe(spec, v);
    } else {
      v.group({mechanism->name, around->help},
              [&](FieldVisitor& inner) { around->describe(*this, inner); });
    }
  }
  v.nested({"full", "layers that see everything where the mask is local"}, full);
  v.boolean({"decay_added", "weight decay also on kernels, mixes, head norms and gates (M-19)"},
            decay_added);
}

void ModelConfig::describe(FieldVisitor& v) {
  v.integer({"vocab_size", "tokens; 0 = the tokenizer's", {0, kLargestVocab}}, vocab_size);
  v.integer({"layers", "decoder blocks", {1, ranges::kMostLayers}}, layers);
  v.integer({"width", "residual width D", {1, kLargestWidth}}, width);
  v.integer({"heads", "query heads H", {1, kLargestWidth}}, heads);
  v.integer({"kv_heads", "key/value heads (GQA; 1 = MQA); 0 = heads", {0, kLargestWidth}},
            kv_heads);
  v.integer({"head_dim", "head width d; 0 = width / heads", {0, kLargestHead}}, head_dim);
  v.integer({"ffn_width",
             "feed-forward width; 0 = 8/3 width with a gate, 4 width without",
             {0, 16 * kLargestWidth}},
            ffn_width);
  v.integer({"ffn_multiple",
             "the width that 0 stands for is the nearest multiple of this",
             {1, kLargestWidth}},
            ffn_multiple);
  v.choice({"feed_forward", "activation; the glu family has a gate (spec 7.4)"}, feed_forward);
  v.integer({"context", "trained length in tokens", {1, ranges::kMostPositions}}, context);
  v.boolean({"tied", "the output head is the embedding"}, tied);
  v.choice({"block", "where norms stand, and serial or parallel (spec 7.2)"}, block);
  v.choice({"norm", "RMSNorm or LayerNorm, with or without bias and weight"}, norm);
  v.choice({"qk_norm", "normalisation of queries and keys (spec 7.3)"}, qk_norm);
  v.real({"norm_eps", "epsilon of all norms", {1e-30, 1}}, norm_eps);
  v.choice({"norm_depth_scale",
            "factor of the norms before attention and feed-forward of layer l: lambda "
            "1 - lambda_init(l), inverse_sqrt 1/sqrt(l+1) (M-8)"},
           norm_depth_scale);
  v.nested({"biases", "projections that add a bias"}, biases);
  v.real({"dropout", "on embeddings and on what each block adds, in training", ranges::kBelowOne},
         dropout);
  v.real({"query_init",
          "multiplies the start of W_q, or of the q gain with qk_norm (fair control of Focal, F-5)",
          ranges::kPositive},
         query_init);
  v.nested({"init", "how matrices start"}, init);
  v.real({"embedding_scale", "multiplies embeddings; 0 = sqrt(width)", ranges::kNotNegative},
         embedding_scale);
  v.real({"logit_scale", "multiplies the output head's logits", ranges::kPositive}, logit_scale);
  v.real({"logit_cap", "c of c*tanh(z/c) on the output logits; 0 = off", ranges::kNotNegative},
         logit_cap);
  v.integer({"vocab_multiple", "the vocabulary is padded to a multiple of this", {1, 65536}},
            vocab_multiple);
  v.choice({"positions", "rope, none (NoPE, or a bias alone), or added to the embeddings"},
           positions);
  v.nested({"rope", "rotary positions"}, rope);
  v.nested({"attention", "the attention pipeline"}, attention);
  v.nested({"lora", "LoRA: low-rank adapters on the linear layers, over a frozen base"}, lora);
}

ModelConfig ModelConfig::resolved(int64_t tokenizer_vocab) const {
  check_fields("model", *this, "model");
  ModelConfig c = *this;
  if (c.vocab_size == 0) c.vocab_size = tokenizer_vocab;
  require<ConfigError>(c.vocab_size >= std::max<int64_t>(tokenizer_vocab, 1), "model",
                       "'model.vocab_size' must be at least {}, the ids of the tokenizer; got {}",
                       std::max<int64_t>(tokenizer_vocab, 1), c.vocab_size);
  c.vocab_size = (c.vocab_size + c.vocab_multiple - 1) / c.vocab_multiple * c.vocab_multiple;
  require<ConfigError>(c.vocab_size <= kLargestVocab, "model",
                       "'model.vocab_size' must be at most {}; got {} with its multiple of {}",
                       kLargestVocab, c.vocab_size, c.vocab_multiple);
  check_range("kv_heads", c.kv_heads, 0, c.heads);
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  require<ConfigError>(c.heads % c.kv_heads == 0, "model",
                       "'model.kv_heads' must divide 'model.heads'; got {} heads and {} kv_heads",
                       c.heads, c.kv_heads);
  if (c.head_dim == 0) {
    require<ConfigError>(c.width % c.heads == 0, "model",
                         "'model.heads' must divide 'model.width' (or set 'model.head_dim'); got "
                         "width {} and {} heads",
                         c.width, c.heads);
    c.head_dim = c.width / c.heads;
  }
  check_range("head_dim", c.head_dim, 1, kLargestHead);
  if (c.ffn_width == 0) c.ffn_width = matched_width(c);
  check_range("ffn_width", c.ffn_width, 1, 16 * kLargestWidth);
  check_options(c);
  const size_t listed = c.attention.temperature_per_layer.size();
  require<ConfigError>(
      listed == 0 || listed == static_cast<size_t>(c.layers), "model",
      "'model.attention.temperature_per_layer' needs one value a layer ({}); got {}", c.layers,
      listed);
  require<ConfigError>(
      listed == 0 || c.attention.spec.temperature.kind == TemperatureSpec::Kind::constant, "model",
      "'model.attention.temperature_per_layer' is for a constant temperature; remove it or set "
      "temperature.kind: constant");
  for (const ModelMechanism& mechanism : model_mechanisms()) mechanism.check(c);
  c.lora.check();
  lora_places(c.lora, c);  // names that mean nothing
  bool focused = false;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const AttentionSpec spec = c.layer_attention(layer);
    spec.check();
    focused |= spec.focus.active();
  }
  require<ConfigError>(focused || !c.attention.spec.focus.active(), "model",
                       "'model.attention.focus.gate' acts in no layer, because each has a window "
                       "(U-22); set 'model.attention.focus.windowed_layers: true' or remove "
                       "'model.attention.mask.window'");
  return c;
}

AttentionSpec ModelConfig::layer_attention(int64_t layer) const {
  AttentionSpec spec = attention.spec;
  spec.heads = heads, spec.kv_heads = kv_heads, spec.head_dim = head_dim, spec.depth = layer;
  if (attention.full.contains(layer)) spec.mask = {};
  if (spec.differential) {  // 1.2 steps 6 and 7
    spec.head_output.norm = HeadOutputSpec::Norm::rms;
    spec.head_output.depth_scale = HeadOutputSpec::DepthScale::lambda;
  }
  for (const ModelMechanism& mechanism : model_mechanisms())
    if (mechanism.apply != nullptr) mechanism.apply(attention, layer, spec);
  if (!attention.temperature_per_layer.empty())
    spec.temperature.value = attention.temperature_per_layer[static_cast<size_t>(layer)];
  return spec;
}

AttentionSettings base_attention(const AttentionSettings& attention) {
  AttentionSettings base = attention;
  base.spec = without_added_mechanisms(std::move(base.spec));
  for (const ModelMechanism& mechanism : model_mechanisms())
    if (mechanism.reset != nullptr) mechanism.reset(base);
  base.temperature_per_layer.clear();
  base.decay_added = false;
  return base;
}

double ramped_temperature(double value, double ramp) {
  return ramp == 1.0 ? value : 1.0 + ramp * (value - 1.0);
}

ModelConfig ModelConfig::at_temperature_ramp(double ramp) const {
  ModelConfig c = *this;
  c.attention.spec.temperature.value = ramped_temperature(c.attention.spec.temperature.value, ramp);
  for (double& t : c.attention.temperature_per_layer) t = ramped_temperature(t, ramp);
  return c;
}

double ModelConfig::norm_factor(int64_t layer) const {
  return HeadOutputSpec{.depth_scale = norm_depth_scale}.factor(layer);
}

bool ModelConfig::rotated(int64_t layer) const {
  return positions == Positions::rope &&
         (attention.full.positions || !attention.full.contains(layer));
}

}  // namespace fovea
