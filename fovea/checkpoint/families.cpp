// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/families.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/config/reader.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

struct Family {
  std::string_view model_type, architecture;
  bool head_norms;  // RMSNorm on queries and keys of each head
  /// When the window of `sliding_window` acts (spec 8.3, 8.4).
  enum class Window { never, always, if_asked } window;
};
constexpr std::array<Family, 3> kFamilies{{
    {"llama", "LlamaForCausalLM", false, Family::Window::never},
    {"mistral", "MistralForCausalLM", false, Family::Window::always},
    {"qwen3", "Qwen3ForCausalLM", true, Family::Window::if_asked},
}};

/// The values of one config.json. A key that is null counts as absent.
class Keys {
 public:
  Keys(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  int64_t integer(const char* key) const { return present<int64_t>(key, "a whole number"); }
  int64_t integer(const char* key, int64_t absent) const {
    return find(key) == nullptr ? absent : integer(key);
  }
  double real(const char* key, double absent) const {
    return find(key) == nullptr ? absent : present<double>(key, "a number");
  }
  bool flag(const char* key, bool absent) const {
    return find(key) == nullptr ? absent : present<bool>(key, "true or false");
  }
  std::string text(const char* key, const std::string& absent) const {
    return find(key) == nullptr ? absent : present<std::string>(key, "text");
  }
  const std::string& where() const { return where_; }

 private:
  template <class T>
  T present(const char* key, const char* expected) const {
    const Json* value = find(key);
    require<CheckpointError>(value != nullptr, where_, "expected the key '{}'; it is missing", key);
    const bool fits = std::is_same_v<T, bool>          ? value->is_boolean()
                      : std::is_same_v<T, std::string> ? value->is_string()
                      : std::is_same_v<T, double>      ? value->is_number()
                                                       : value->is_number_integer();
    require<CheckpointError>(fits, where_, "'{}' must be {}; got {}", key, expected, value->dump());
    return value->get<T>();
  }

  const Json& json_;
  std::string where_;
};

const Family& family_of(const Keys& keys) {
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
void refuse_what_is_missing(const Keys& keys) {
  const auto refuse = [&](bool neutral, const char* key) {
    if (neutral) return;
    fail<UnsupportedError>(keys.where(), "'{}' is {}, which the decoder does not have", key,
                           keys.find(key)->dump());
  };
  refuse(!keys.flag("attention_bias", false), "attention_bias");
  refuse(!keys.flag("mlp_bias", false), "mlp_bias");
  refuse(keys.text("hidden_act", "silu") == "silu", "hidden_act");
  refuse(keys.real("partial_rotary_factor", 1) == 1, "partial_rotary_factor");
}

/// theta of either dialect (6.2). Scaling rules are refused: ignoring one would change every
/// number.
double rope_theta(const Keys& keys) {
  double theta = keys.real("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = keys.find(key);
    if (value == nullptr) continue;
    require<CheckpointError>(value->is_object(), keys.where(), "'{}' must be a map; got {}", key,
                             value->dump());
    const Keys inner(*value, keys.where());
    const std::string rule = inner.text("rope_type", inner.text("type", "default"));
    require<UnsupportedError>(rule == "default", keys.where(),
                              "'{}' asks for the rule '{}', which the decoder does not have", key,
                              rule);
    theta = inner.real("rope_theta", theta);
  }
  return theta;
}

/// The window of all layers, 0 = none. layer_types wins over the family's rule (8.0).
int64_t window_of(const Keys& keys, const Family& family) {
  const int64_t window = keys.integer("sliding_window", 0);
  bool all = false, any = false;
  if (const Json* types = keys.find("layer_types")) {
    const auto slides = [](const Json& type) { return type == "sliding_attention"; };
    const auto known = [&](const Json& type) { return slides(type) || type == "full_attention"; };
    require<UnsupportedError>(types->is_array() && std::ranges::all_of(*types, known), keys.where(),
                              "'layer_types' must list full_attention or sliding_attention; got {}",
                              types->dump());
    any = std::ranges::any_of(*types, slides);
    all = std::ranges::all_of(*types, slides);
  } else if (family.window == Family::Window::if_asked) {
    any = keys.flag("use_sliding_window", false) && window > 0;
    all = any && keys.integer("max_window_layers", 0) == 0;
    any = any && keys.integer("max_window_layers", 0) < keys.integer("num_hidden_layers");
  } else {
    any = all = family.window == Family::Window::always && window > 0;
  }
  require<UnsupportedError>(all == any, keys.where(),
                            "some layers have a window and others do not, which the decoder does "
                            "not have");
  require<CheckpointError>(!any || window > 0, keys.where(),
                           "'layer_types' asks for windows, but 'sliding_window' gives no size");
  return any ? window : 0;
}

const Family& family_for(const ModelConfig& config) {
  if (config.qk_norm == QkNorm::head_rms) return kFamilies[2];
  return kFamilies[config.attention.mask.window > 0 ? 1 : 0];
}

/// Without what acts in training only, and with one way of writing what can be written in two.
ModelConfig for_inference(ModelConfig c) {
  const ModelConfig neutral;
  c.dropout = neutral.dropout;
  c.query_init = neutral.query_init;
  c.attention.dropout = neutral.attention.dropout;
  if (c.rope.rotary_dim == c.head_dim) c.rope.rotary_dim = 0;
  TemperatureSpec& t = c.attention.temperature;
  std::vector<double>& layers = c.attention.temperature_per_layer;
  if (!layers.empty() && std::ranges::all_of(layers, [](double x) { return x == 1.0; })) {
    layers.clear();
    t.value = 1.0;
  }
  if (t.kind == TemperatureSpec::Kind::constant) t = {.value = t.value};
  return c;
}

}  // namespace

ModelConfig config_from_hugging_face(const Json& config, const std::string& where) {
  require<CheckpointError>(config.is_object(), where, "expected a JSON object; got {}",
                           config.type_name());
  const Keys keys(config, where);
  const Family& family = family_of(keys);
  refuse_what_is_missing(keys);
  ModelConfig c;
  c.vocab_size = keys.integer("vocab_size");
  c.layers = keys.integer("num_hidden_layers");
  c.width = keys.integer("hidden_size");
  c.heads = keys.integer("num_attention_heads");
  c.kv_heads = keys.integer("num_key_value_heads", c.heads);
  c.head_dim = keys.integer("head_dim", 0);
  c.ffn_width = keys.integer("intermediate_size");
  c.context = keys.integer("max_position_embeddings", 2048);
  c.tied = keys.flag("tie_word_embeddings", false);
  c.qk_norm = family.head_norms ? QkNorm::head_rms : QkNorm::none;
  c.norm_eps = keys.real("rms_norm_eps", 1e-6);
  c.rope.theta = rope_theta(keys);
  c.attention.mask.window = window_of(keys, family);
  try {
    return c.resolved(c.vocab_size);
  } catch (const ConfigError& error) {
    throw CheckpointError(fmt::format("[{}] {}", where, error.what()));
  }
}

Json hugging_face_config(const ModelConfig& c) {
  const Family& family = family_for(c);
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
            {"rms_norm_eps", c.norm_eps},
            // The older dialect and that of transformers 5.
            {"rope_theta", c.rope.theta},
            {"rope_parameters", {{"rope_theta", c.rope.theta}, {"rope_type", "default"}}},
            {"hidden_act", "silu"},
            {"attention_bias", false},
            {"mlp_bias", false},
            {"attention_dropout", c.attention.dropout},
            {"tie_word_embeddings", c.tied}};
  const int64_t window = c.attention.mask.window;
  if (family.window != Family::Window::never)
    json["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  if (family.window == Family::Window::if_asked) {
    json["use_sliding_window"] = window > 0;
    json["max_window_layers"] = window > 0 ? 0 : c.layers;
    json["layer_types"] = std::vector<std::string>(
        static_cast<size_t>(c.layers), window > 0 ? "sliding_attention" : "full_attention");
  }
  return json;
}

// What survives being written and read back is what the family can say: no second list to keep.
std::vector<std::string> beyond_hugging_face(const ModelConfig& config) {
  const ModelConfig wanted = for_inference(config);
  const ModelConfig said = config_from_hugging_face(hugging_face_config(wanted), "config.json");
  const Json mine = fields_to_json(wanted).flatten(), theirs = fields_to_json(said).flatten();
  std::vector<std::string> keys;
  for (const auto& [path, value] : mine.items()) {
    const auto found = theirs.find(path);
    if (found != theirs.end() && *found == value) continue;
    std::string key = path.substr(1);
    std::ranges::replace(key, '/', '.');
    keys.push_back(key);
  }
  return keys;
}

}  // namespace fovea
