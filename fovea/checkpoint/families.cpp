// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/families.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/checkpoint/family_keys.h"
#include "fovea/config/reader.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

/// What a model_type fixes, beyond the keys of its config.json (spec 8.1 to 8.7).
struct Family {
  std::string_view model_type, architecture;
  /// When the window of `sliding_window` acts: on all layers, if `use_sliding_window` says so, or
  /// on all but every n-th layer.
  enum class Window {
    never,
    always,
    if_asked,
    but_every_2nd,
    but_every_4th
  } window = Window::never;
  BlockLayout block = BlockLayout::pre;
  NormKind norm = NormKind::rms;
  QkNorm qk_norm = QkNorm::none;
  FeedForward feed_forward = FeedForward::swiglu;
  RopeLayout layout = RopeLayout::half_split;
  /// Biases on q, k, v: never, by `attention_bias` (then on the output too), always.
  enum class QkvBias { never, by_key, always } qkv_bias = QkvBias::by_key;
  bool tied = false;           // where the key is absent
  bool mlp_bias = false;       // has the key
  bool full_positions = true;  // RoPE on the layers without a window
  bool scalar = false;         // Gemma-2: query_pre_attn_scalar, caps, embeddings times sqrt(width)
  bool logit_scale = false;    // Cohere
  bool differential = false;   // DiffLlama: read alone, its head norm has no weight (1.5)
};
using Window = Family::Window;
using QkvBias = Family::QkvBias;

constexpr std::array<Family, 10> kFamilies{{
    {.model_type = "llama", .architecture = "LlamaForCausalLM", .mlp_bias = true},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .window = Window::always,
     .qkv_bias = QkvBias::never},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .window = Window::if_asked,
     .qkv_bias = QkvBias::always},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .window = Window::if_asked,
     .qk_norm = QkNorm::head_rms},
    {.model_type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .block = BlockLayout::output,
     .qk_norm = QkNorm::full_rms},
    {.model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .window = Window::but_every_2nd,
     .block = BlockLayout::sandwich,
     .feed_forward = FeedForward::geglu_tanh,
     .tied = true,
     .scalar = true},
    {.model_type = "cohere",
     .architecture = "CohereForCausalLM",
     .block = BlockLayout::parallel,
     .norm = NormKind::layer_no_bias,
     .layout = RopeLayout::interleaved,
     .tied = true,
     .logit_scale = true},
    {.model_type = "cohere2",
     .architecture = "Cohere2ForCausalLM",
     .window = Window::but_every_4th,
     .block = BlockLayout::parallel,
     .norm = NormKind::layer_no_bias,
     .layout = RopeLayout::interleaved,
     .tied = true,
     .full_positions = false,
     .logit_scale = true},
    {.model_type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .norm = NormKind::layer,
     .feed_forward = FeedForward::gelu_tanh,
     .qkv_bias = QkvBias::always,
     .tied = true},
    {.model_type = "diffllama", .architecture = "DiffLlamaForCausalLM", .differential = true},
}};

const Family& family_of(const FamilyKeys& keys) {
  const std::string type = keys.text("model_type", "");
  std::vector<std::string> known;
  for (const Family& family : kFamilies) {
    if (family.model_type == type) return family;
    known.emplace_back(family.model_type);
  }
  fail<UnsupportedError>(keys.where(), "expected a model_type of {}; got '{}'{}",
                         fmt::join(known, ", "), type, did_you_mean(type, known));
}

/// Settings of these families that the decoder does not have: each must stand at its neutral value.
void refuse_what_is_missing(const FamilyKeys& keys, const Family& family) {
  const auto refuse = [&](bool neutral, const char* key) {
    if (neutral) return;
    fail<UnsupportedError>(keys.where(), "'{}' is {}, which the decoder does not have", key,
                           keys.find(key)->dump());
  };
  const bool gelu = family.feed_forward == FeedForward::geglu_tanh;
  const char* act = gelu ? "hidden_activation" : "hidden_act";
  const std::string expected = gelu ? "gelu_pytorch_tanh" : "silu";
  refuse(keys.text(act, expected) == expected, act);
  refuse(!keys.flag("use_qk_norm", false), "use_qk_norm");
  if (!family.mlp_bias) refuse(!keys.flag("mlp_bias", false), "mlp_bias");
  if (family.qkv_bias == QkvBias::never)
    refuse(!keys.flag("attention_bias", false), "attention_bias");
}

/// Window and full layers. layer_types wins over the family's rule (8.0).
void read_windows(const FamilyKeys& keys, const Family& family, ModelConfig& c) {
  const int64_t window = keys.integer("sliding_window", 0);
  std::vector<int64_t> full;
  if (const Json* types = keys.find("layer_types")) {
    const auto slides = [](const Json& type) { return type == "sliding_attention"; };
    const auto known = [&](const Json& type) { return slides(type) || type == "full_attention"; };
    require<UnsupportedError>(types->is_array() && std::ranges::all_of(*types, known), keys.where(),
                              "'layer_types' must list full_attention or sliding_attention; got {}",
                              types->dump());
    require<CheckpointError>(static_cast<int64_t>(types->size()) == c.layers, keys.where(),
                             "'layer_types' must have an entry for each of {} layers; got {}",
                             c.layers, types->size());
    for (int64_t i = 0; i < c.layers; ++i) {
      if (!slides((*types)[static_cast<size_t>(i)])) full.push_back(i);
    }
  } else {
    const int64_t first =
        family.window == Window::if_asked ? keys.integer("max_window_layers", 0) : 0;
    const bool asked = family.window != Window::if_asked || keys.flag("use_sliding_window", false);
    const int64_t nth = family.window == Window::but_every_2nd ? 2
                        : family.window == Window::but_every_4th
                            ? keys.integer("sliding_window_pattern", 4)
                            : 0;
    const bool any = family.window != Window::never && asked && window > 0;
    for (int64_t i = 0; i < c.layers; ++i) {
      if (!any || i < first || (nth > 0 && (i + 1) % nth == 0)) full.push_back(i);
    }
  }
  if (static_cast<int64_t>(full.size()) == c.layers) return;
  require<CheckpointError>(window > 0, keys.where(),
                           "'layer_types' asks for windows, but 'sliding_window' gives no size");
  c.attention.spec.mask.window = window;
  c.attention.full.layers = full;
  c.attention.full.positions = full.empty() || family.full_positions;
}

void read_gemma(const FamilyKeys& keys, ModelConfig& c) {
  c.embedding_scale = 0.0;
  const int64_t head_dim = c.head_dim > 0 ? c.head_dim : c.width / std::max<int64_t>(c.heads, 1);
  const double scalar = keys.real("query_pre_attn_scalar", 256.0);
  if (scalar != static_cast<double>(head_dim))
    c.attention.spec.temperature.value = std::sqrt(scalar / static_cast<double>(head_dim));
  c.attention.spec.soft_cap = keys.real("attn_logit_softcapping", 0.0);
  c.logit_cap = keys.real("final_logit_softcapping", 0.0);
}

/// Layers are counted one by one, so a damaged number of them ends here.
int64_t read_layers(const FamilyKeys& keys, const char* key) {
  const int64_t layers = keys.integer(key);
  require<CheckpointError>(layers >= 1 && layers <= ranges::kMostLayers, keys.where(),
                           "'{}' must be 1 to {}; got {}", key, ranges::kMostLayers, layers);
  return layers;
}

ModelConfig read_gpt2(const FamilyKeys& keys) {
  const auto refuse = [&](bool neutral, const char* key) {
    require<UnsupportedError>(neutral, keys.where(), "'{}' is {}, which the decoder does not have",
                              key, neutral ? "" : keys.find(key)->dump());
  };
  refuse(keys.text("activation_function", "gelu_new") == "gelu_new", "activation_function");
  refuse(keys.flag("scale_attn_weights", true), "scale_attn_weights");
  refuse(!keys.flag("scale_attn_by_inverse_layer_idx", false), "scale_attn_by_inverse_layer_idx");
  ModelConfig c;
  c.vocab_size = keys.integer("vocab_size");
  c.layers = read_layers(keys, "n_layer");
  c.width = keys.integer("n_embd");
  c.heads = keys.integer("n_head");
  c.ffn_width = keys.integer("n_inner", 4 * c.width);
  c.context = keys.integer("n_positions", keys.integer("n_ctx", 1024));
  c.norm_eps = keys.real("layer_norm_epsilon", 1e-5);
  c.positions = Positions::learned;
  c.biases = {true, true, true};
  c.norm = NormKind::layer;
  c.feed_forward = FeedForward::gelu_tanh;
  c.tied = keys.flag("tie_word_embeddings", true);
  return c;
}

ModelConfig read_others(const FamilyKeys& keys, const Family& family) {
  refuse_what_is_missing(keys, family);
  ModelConfig c;
  c.vocab_size = keys.integer("vocab_size");
  c.layers = read_layers(keys, "num_hidden_layers");
  c.width = keys.integer("hidden_size");
  c.heads = keys.integer("num_attention_heads");
  c.kv_heads = keys.integer("num_key_value_heads", c.heads);
  c.head_dim = keys.integer("head_dim", 0);
  c.ffn_width = keys.integer("intermediate_size");
  c.context = keys.integer("max_position_embeddings", 2048);
  c.tied = keys.flag("tie_word_embeddings", family.tied);
  c.block = family.block;
  c.norm = family.norm;
  c.qk_norm = family.qk_norm;
  c.feed_forward = family.feed_forward;
  c.norm_eps = family.norm == NormKind::rms ? keys.real("rms_norm_eps", 1e-6)
                                            : keys.real("layer_norm_eps", 1e-5);
  const bool asked = family.qkv_bias == QkvBias::by_key && keys.flag("attention_bias", false);
  c.biases = {.qkv = asked || family.qkv_bias == QkvBias::always,
              .output = asked,
              .feed_forward = keys.flag("mlp_bias", false)};
  c.rope = read_rope(keys, c.context);
  c.rope.layout = family.layout;
  if (family.scalar) read_gemma(keys, c);
  if (family.logit_scale) c.logit_scale = keys.real("logit_scale", 0.0625);
  if (family.differential) {
    c.attention.spec.differential = true;
    c.attention.spec.head_output.norm_eps = c.norm_eps;
  }
  read_windows(keys, family, c);
  return c;
}

/// The family whose fixed choices are the config's; llama where none is.
const Family& family_for(const ModelConfig& c) {
  const bool window = c.attention.spec.mask.window > 0, some = window && c.attention.full.any();
  const auto fits = [&](const Family& f) {
    if (f.differential) return false;
    if (f.model_type == "gpt2") return c.positions == Positions::learned;
    const bool windows = f.window == Window::if_asked || !window ||
                         (f.window == Window::always && !some) || f.window >= Window::but_every_2nd;
    const bool biases = f.qkv_bias == QkvBias::always ? c.biases.qkv && !c.biases.output
                                                      : c.biases.qkv == c.biases.output;
    return f.block == c.block && f.norm == c.norm && f.qk_norm == c.qk_norm &&
           f.feed_forward == c.feed_forward && windows && biases &&
           f.full_positions == c.attention.full.positions;
  };
  const auto found = std::ranges::find_if(kFamilies, fits);
  return found == kFamilies.end() ? kFamilies[0] : *found;
}

void write_windows(const ModelConfig& c, const Family& family, Json& json) {
  if (family.window == Window::never) return;
  const int64_t window = c.attention.spec.mask.window;
  json["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  if (family.window == Window::always) return;
  std::vector<std::string> types;
  for (int64_t i = 0; i < c.layers; ++i) {
    const bool full = window == 0 || c.attention.full.contains(i);
    types.emplace_back(full ? "full_attention" : "sliding_attention");
  }
  json["layer_types"] = types;
  if (family.window == Window::if_asked) {
    json["use_sliding_window"] = window > 0;
    json["max_window_layers"] = window > 0 ? 0 : c.layers;
  }
}

Json gpt2_config(const ModelConfig& c, const Family& family) {
  return {{"architectures", {family.architecture}},
          {"model_type", family.model_type},
          {"vocab_size", c.vocab_size},
          {"n_embd", c.width},
          {"n_inner", c.ffn_width},
          {"n_layer", c.layers},
          {"n_head", c.heads},
          {"n_positions", c.context},
          {"layer_norm_epsilon", c.norm_eps},
          {"activation_function", "gelu_new"},
          {"attn_pdrop", c.attention.spec.dropout},
          {"resid_pdrop", c.dropout},
          {"embd_pdrop", c.dropout},
          {"tie_word_embeddings", c.tied}};
}

/// Without what acts in training only, and with one way of writing what can be written in two.
ModelConfig for_inference(ModelConfig c) {
  const ModelConfig neutral;
  c.dropout = neutral.dropout;
  c.query_init = neutral.query_init;
  c.init = neutral.init;
  c.ffn_multiple = neutral.ffn_multiple;
  c.vocab_multiple = neutral.vocab_multiple;
  c.attention.spec.dropout = neutral.attention.spec.dropout;
  c.attention.decay_added = neutral.attention.decay_added;
  if (c.rope.rotary_dim == c.head_dim) c.rope.rotary_dim = 0;
  if (c.embedding_scale == 0.0) c.embedding_scale = std::sqrt(static_cast<double>(c.width));
  FullLayers& full = c.attention.full;
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < c.layers; ++i) {
    if (full.contains(i)) layers.push_back(i);
  }
  full = {.every = 0, .layers = layers, .positions = full.positions};
  if (static_cast<int64_t>(layers.size()) == c.layers && full.positions) {
    full = {};
    c.attention.spec.mask = {};
  }
  TemperatureSpec& t = c.attention.spec.temperature;
  std::vector<double>& values = c.attention.temperature_per_layer;
  if (!values.empty() && std::ranges::all_of(values, [](double x) { return x == 1.0; })) {
    values.clear();
    t.value = 1.0;
  }
  if (t.kind == TemperatureSpec::Kind::constant) t = {.value = t.value};
  return c;
}

bool same(const Json& a, const Json& b) {
  if (!a.is_number_float() || !b.is_number()) return a == b;
  const double x = a.get<double>(), y = b.get<double>();
  return std::abs(x - y) <= 1e-12 * std::max(std::abs(x), std::abs(y));
}

}  // namespace

ModelConfig config_from_hugging_face(const Json& config, const std::string& where) {
  require<CheckpointError>(config.is_object(), where, "expected a JSON object; got {}",
                           config.type_name());
  const FamilyKeys keys(config, where);
  const Family& family = family_of(keys);
  const ModelConfig c = family.model_type == "gpt2" ? read_gpt2(keys) : read_others(keys, family);
  try {
    return c.resolved(c.vocab_size);
  } catch (const ConfigError& error) {
    throw CheckpointError(fmt::format("[{}] {}", where, error.what()));
  }
}

Json hugging_face_config(const ModelConfig& c) {
  const Family& family = family_for(c);
  if (family.model_type == "gpt2") return gpt2_config(c, family);
  Json json{{"architectures", {family.architecture}},
            {"model_type", family.model_type},
            {"vocab_size", c.vocab_size},
            {"hidden_size", c.width},
            {"intermediate_size", c.ffn_width},
            {"num_hidden_layers", c.layers},
            {"num_attention_heads", c.heads},
            {"num_key_value_heads", c.kv_heads},
            {"head_dim", c.head_dim},
            {"max_position_embeddings", c.context},
            {family.norm == NormKind::rms ? "rms_norm_eps" : "layer_norm_eps", c.norm_eps},
            {"attention_bias", c.biases.qkv && family.qkv_bias == QkvBias::by_key},
            {"attention_dropout", c.attention.spec.dropout},
            {"tie_word_embeddings", c.tied}};
  write_rope(c.rope, json);
  if (family.mlp_bias) json["mlp_bias"] = c.biases.feed_forward;
  const char* act = family.feed_forward == FeedForward::geglu_tanh ? "gelu_pytorch_tanh" : "silu";
  json["hidden_act"] = act;
  if (family.scalar) {
    const double t = c.attention.spec.temperature.value;
    const auto cap = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
    json["hidden_activation"] = act;
    // A whole number there; a temperature that gives none is not Gemma's and must be folded.
    json["query_pre_attn_scalar"] =
        std::max<int64_t>(1, std::llround(t * t * static_cast<double>(c.head_dim)));
    json["attn_logit_softcapping"] = cap(c.attention.spec.soft_cap);
    json["final_logit_softcapping"] = cap(c.logit_cap);
  }
  if (family.logit_scale) json["logit_scale"] = c.logit_scale;
  write_windows(c, family, json);
  return json;
}

// What survives being written and read back is what the family can say: no second list to keep.
std::vector<std::string> not_in_hugging_face(const ModelConfig& config) {
  const ModelConfig wanted = for_inference(config);
  const ModelConfig said =
      for_inference(config_from_hugging_face(hugging_face_config(wanted), "config.json"));
  const Json mine = fields_to_json(wanted).flatten(), theirs = fields_to_json(said).flatten();
  std::vector<std::string> keys;
  for (const auto& [path, value] : mine.items()) {
    const auto found = theirs.find(path);
    if (found != theirs.end() && same(value, *found)) continue;
    std::string key = path.substr(1);
    std::ranges::replace(key, '/', '.');
    keys.push_back(key);
  }
  return keys;
}

}  // namespace fovea
