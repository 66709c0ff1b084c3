// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/gguf_family.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/base/printable.h"
#include "fovea/checkpoint/families.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using Kind = RopeScaling::Kind;

constexpr std::array<GgufFamily, 3> kGgufFamilies{{
    {.architecture = "llama", .model_type = "llama", .interleaved = true},
    {.architecture = "qwen2", .model_type = "qwen2"},
    {.architecture = "qwen3", .model_type = "qwen3"},
}};

struct Renamed {
  std::string_view theirs, ours;
};
constexpr std::array<Renamed, 3> kModelNames{{
    {"token_embd.", "model.embed_tokens."},
    {"output_norm.", "model.norm."},
    {"output.", "lm_head."},
}};
constexpr std::array<Renamed, 11> kBlockNames{{
    {"attn_norm.", "input_layernorm."},
    {"attn_q.", "self_attn.q_proj."},
    {"attn_k.", "self_attn.k_proj."},
    {"attn_v.", "self_attn.v_proj."},
    {"attn_output.", "self_attn.o_proj."},
    {"attn_q_norm.", "self_attn.q_norm."},
    {"attn_k_norm.", "self_attn.k_norm."},
    {"ffn_norm.", "post_attention_layernorm."},
    {"ffn_gate.", "mlp.gate_proj."},
    {"ffn_up.", "mlp.up_proj."},
    {"ffn_down.", "mlp.down_proj."},
}};
constexpr std::string_view kTheirBlocks = "blk.", kOurBlocks = "model.layers.";

/// The rule of LLaMA-3.1 and later; files hold its factors, not its settings.
RopeScaling llama3(double factor) {
  return {.kind = Kind::llama3, .factor = factor, .original_context = 8192};
}

std::vector<float> factors_of(const RopeScaling& rule, double theta, int64_t width) {
  const std::vector<double> plain = rope_frequencies({}, theta, width, 0).values,
                            scaled = rope_frequencies(rule, theta, width, 0).values;
  std::vector<float> factors;
  for (size_t i = 0; i < plain.size(); ++i)
    factors.push_back(static_cast<float>(plain[i] / scaled[i]));
  return factors;
}

/// The number that was meant by a float32: 1e-5, not 9.99999975e-06.
double as_written(double value) {
  std::array<char, 32> text{};
  const auto shortest =
      std::to_chars(text.data(), text.data() + text.size(), static_cast<float>(value));
  double read = value;
  std::from_chars(text.data(), shortest.ptr, read);
  return read;
}

/// The metadata of one architecture; remembers which keys were asked for.
class Keys {
 public:
  Keys(const GgufMetadata& metadata, std::string_view architecture, std::string where)
      : metadata_(metadata), prefix_(fmt::format("{}.", architecture)), where_(std::move(where)) {}

  const GgufValue* find(std::string_view key) {
    const std::string name = prefix_ + std::string(key);
    asked_.insert(name);
    const auto found = metadata_.find(name);
    return found == metadata_.end() ? nullptr : &found->second;
  }
  int64_t integer(std::string_view key) {
    const GgufValue* value = find(key);
    require<CheckpointError>(value != nullptr, where_,
                             "expected the metadata key '{}{}'; it is missing: the file is no "
                             "language model, or damaged",
                             prefix_, key);
    return integer_of(*value, key);
  }
  int64_t integer(std::string_view key, int64_t absent) {
    const GgufValue* value = find(key);
    return value == nullptr ? absent : integer_of(*value, key);
  }
  double real(std::string_view key, double absent) {
    const GgufValue* value = find(key);
    if (value == nullptr) return absent;
    require<CheckpointError>(!value->array && value->reals.size() == 1, where_,
                             "'{}{}' must be a floating-point number", prefix_, key);
    return value->type == GgufType::float32 ? as_written(value->reals[0]) : value->reals[0];
  }
  std::string text(std::string_view key, const std::string& absent) {
    const GgufValue* value = find(key);
    if (value == nullptr) return absent;
    require<CheckpointError>(!value->array && value->texts.size() == 1, where_,
                             "'{}{}' must be a text", prefix_, key);
    return value->texts[0];
  }
  void require_neutral(std::string_view key, int64_t neutral) {
    const int64_t value = integer(key, neutral);
    require<UnsupportedError>(value == neutral, where_,
                              "'{}{}' is {}, which the decoder does not have", prefix_, key, value);
  }
  void require_neutral_real(std::string_view key, double neutral) {
    const double value = real(key, neutral);
    require<UnsupportedError>(value == neutral, where_,
                              "'{}{}' is {}, which the decoder does not have", prefix_, key, value);
  }
  /// UnsupportedError for a key of the architecture that nobody asked for.
  void require_all_known() const {
    for (auto found = metadata_.lower_bound(prefix_);
         found != metadata_.end() && found->first.starts_with(prefix_); ++found) {
      require<UnsupportedError>(asked_.contains(found->first), where_,
                                "the metadata key '{}' is not known, and passing it over could "
                                "change every number; convert the model from Hugging Face's folder",
                                printable_line(found->first));
    }
  }
  const std::string& where() const { return where_; }

 private:
  int64_t integer_of(const GgufValue& value, std::string_view key) const {
    // Sizes of single layers stand in arrays; equal ones are one size.
    const bool equal =
        !value.integers.empty() && std::ranges::count(value.integers, value.integers[0]) ==
                                       static_cast<std::ptrdiff_t>(value.integers.size());
    require<UnsupportedError>(!value.array || equal || value.integers.empty(), where_,
                              "'{}{}' differs between layers, which the decoder does not have",
                              prefix_, key);
    require<CheckpointError>(equal, where_, "'{}{}' must be a whole number", prefix_, key);
    return value.integers[0];
  }

  const GgufMetadata& metadata_;
  std::string prefix_, where_;
  std::set<std::string, std::less<>> asked_;
};

Json rope_rule(const RopeScaling& s) {
  if (s.kind == Kind::none) return nullptr;
  return {{"rope_type", "llama3"},
          {"factor", s.factor},
          {"original_max_position_embeddings", s.original_context},
          {"low_freq_factor", s.low_frequency},
          {"high_freq_factor", s.high_frequency}};
}

/// The rule whose factors these are.
Json rule_of_factors(const std::vector<float>& factors, double theta, int64_t width,
                     const std::string& where) {
  const float largest = factors.empty() ? 1.0F : std::ranges::max(factors);
  for (const RopeScaling& rule : {RopeScaling{}, llama3(static_cast<double>(largest))}) {
    if (!(rule.factor >= 1.0)) continue;
    const std::vector<float> expected = factors_of(rule, theta, width);
    const auto close = [](float a, float b) { return std::abs(a - b) <= 1e-4F * std::abs(b); };
    if (std::ranges::equal(factors, expected, close)) return rope_rule(rule);
  }
  fail<UnsupportedError>(where,
                         "rope_freqs.weight must hold the factors of LLaMA-3's rule for {} "
                         "frequencies (trained length 8192, frequency factors 1 and 4); it holds "
                         "others, which the decoder does not have",
                         width / 2);
}

void read_rope(Keys& keys, const GgufTensorFacts& facts, int64_t head_dim, int64_t context,
               Json& json) {
  const double theta = keys.real("rope.freq_base", 10000.0);
  json["rope_theta"] = theta;
  const int64_t turned = keys.integer("rope.dimension_count", head_dim);
  require<UnsupportedError>(turned == head_dim, keys.where(),
                            "'rope.dimension_count' is {}; the decoder turns whole heads of {} in "
                            "this family",
                            turned, head_dim);
  keys.find("rope.scaling.finetuned");  // says how the model was trained, nothing to compute
  const std::string rule = keys.text("rope.scaling.type", "none");
  const double factor = keys.real("rope.scaling.factor", keys.real("rope.scale_linear", 1.0));
  const int64_t original = keys.integer("rope.scaling.original_context_length", context);
  keys.require_neutral_real("rope.scaling.attn_factor", 1.0);
  const bool yarn = rule == "yarn";
  if (yarn) {
    keys.require_neutral_real("rope.scaling.yarn_ext_factor", 1.0);
    keys.require_neutral_real("rope.scaling.yarn_attn_factor", 1.0);
    json["rope_scaling"] = {{"rope_type", "yarn"},
                            {"factor", factor},
                            {"original_max_position_embeddings", original},
                            {"beta_fast", keys.real("rope.scaling.yarn_beta_fast", 32.0)},
                            {"beta_slow", keys.real("rope.scaling.yarn_beta_slow", 1.0)}};
  } else if (rule == "linear" || (rule == "none" && factor != 1.0)) {
    json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
  } else {
    require<UnsupportedError>(rule == "none", keys.where(),
                              "'rope.scaling.type' must be none, linear or yarn; got '{}', which "
                              "the decoder does not have",
                              printable_line(rule));
  }
  if (facts.rope_factors.empty()) return;
  const Json by_factors = rule_of_factors(facts.rope_factors, theta, head_dim, keys.where());
  require<UnsupportedError>(by_factors.is_null() || !json.contains("rope_scaling"), keys.where(),
                            "'rope.scaling.type' is {} and rope_freqs.weight is there too; the "
                            "decoder has one rule at a time",
                            rule);
  if (!by_factors.is_null()) json["rope_scaling"] = by_factors;
}

/// Keys of Hugging Face whose values differ: the settings that GGUF cannot say.
std::vector<std::string> lost_keys(const Json& wanted, const Json& said) {
  const Json mine = wanted.flatten(), theirs = said.flatten();
  std::vector<std::string> lost;
  for (const auto& [path, value] : mine.items()) {
    const auto found = theirs.find(path);
    const bool same =
        found != theirs.end() && (value.is_number() && found->is_number()
                                      ? std::abs(value.get<double>() - found->get<double>()) <=
                                            1e-6 * std::abs(value.get<double>())
                                      : value == *found);
    if (!same && path != "/attention_dropout") lost.push_back(path.substr(1));
  }
  return lost;
}

std::string replaced(std::string_view name, std::string_view from, std::string_view to) {
  return fmt::format("{}{}", to, name.substr(from.size()));
}

}  // namespace

const GgufFamily& gguf_family(const GgufMetadata& metadata, const std::string& where) {
  const auto text = [&](const char* key, const std::string& absent) {
    const auto found = metadata.find(key);
    if (found == metadata.end()) return absent;
    require<CheckpointError>(!found->second.array && found->second.texts.size() == 1, where,
                             "'{}' must be a text", key);
    return found->second.texts[0];
  };
  const std::string type = text("general.type", "model");
  require<UnsupportedError>(type == "model", where,
                            "expected a language model; 'general.type' is '{}'",
                            printable_line(type));
  const auto parts = metadata.find("split.count");
  require<UnsupportedError>(
      parts == metadata.end() || parts->second.integers.empty() || parts->second.integers[0] <= 1,
      where,
      "expected a whole model; this file is one of several parts: "
      "join them first");
  const std::string name = text("general.architecture", "");
  require<CheckpointError>(!name.empty(), where,
                           "expected the metadata key 'general.architecture'; it is missing: the "
                           "file is no language model, or damaged");
  std::vector<std::string> known;
  for (const GgufFamily& family : kGgufFamilies) {
    if (family.architecture == name) return family;
    known.emplace_back(family.architecture);
  }
  fail<UnsupportedError>(where, "expected an architecture of {}; got '{}'{}",
                         fmt::join(known, ", "), printable_line(name), did_you_mean(name, known));
}

Json hugging_face_config(const GgufMetadata& metadata, const GgufTensorFacts& facts,
                         const std::string& where) {
  const GgufFamily& family = gguf_family(metadata, where);
  Keys keys(metadata, family.architecture, where);
  const int64_t heads = keys.integer("attention.head_count"),
                width = keys.integer("embedding_length"), context = keys.integer("context_length");
  require<CheckpointError>(heads > 0, where, "'attention.head_count' must be at least 1; got {}",
                           heads);
  const int64_t head_dim = keys.integer("attention.key_length", width / heads);
  keys.require_neutral("attention.value_length", head_dim);
  for (const char* key : {"expert_count", "expert_used_count"}) keys.require_neutral(key, 0);
  keys.require_neutral("attention.causal", 1);
  keys.find("tensor_data_layout");  // names the program that the weights come from
  keys.find("vocab_size");          // the embedding says it
  const int64_t window = keys.integer("attention.sliding_window", 0);
  Json json{{"model_type", family.model_type},
            {"vocab_size", facts.vocabulary},
            {"hidden_size", width},
            {"intermediate_size", keys.integer("feed_forward_length")},
            {"num_hidden_layers", keys.integer("block_count")},
            {"num_attention_heads", heads},
            {"num_key_value_heads", keys.integer("attention.head_count_kv", heads)},
            {"head_dim", head_dim},
            {"max_position_embeddings", context},
            {"rms_norm_eps", keys.real("attention.layer_norm_rms_epsilon", 1e-6)},
            {"tie_word_embeddings", facts.tied}};
  if (family.model_type == "llama" && window > 0) {
    json["model_type"] = "mistral";
    json["sliding_window"] = window;
  } else {
    require<UnsupportedError>(window == 0, where,
                              "'attention.sliding_window' is {}: the file does not say for which "
                              "layers of this family",
                              window);
    json["attention_bias"] = family.model_type != "qwen2" && facts.attention_bias;
    json["mlp_bias"] = facts.feed_forward_bias;
  }
  read_rope(keys, facts, head_dim, context, json);
  keys.require_all_known();
  return json;
}

GgufMetadata gguf_config(const ModelConfig& c) {
  std::vector<std::string> missing = not_in_hugging_face(c);
  require<UnsupportedError>(missing.empty(), "GGUF", "no GGUF can say {}",
                            fmt::join(missing, ", "));
  const Json wanted = hugging_face_config(c);
  const auto type = wanted["model_type"].get<std::string>();
  std::vector<std::string_view> types;
  types.reserve(kGgufFamilies.size());
  for (const GgufFamily& family : kGgufFamilies) types.push_back(family.model_type);
  const auto family = std::ranges::find(kGgufFamilies, type, &GgufFamily::model_type);
  require<UnsupportedError>(family != kGgufFamilies.end(), "GGUF",
                            "expected a model of the families {}; this one is {}",
                            fmt::join(types, ", "), type);
  GgufMetadata metadata;
  const auto key = [&](const char* name) { return fmt::format("{}.{}", type, name); };
  const auto set = [&](const char* name, int64_t value) {
    metadata[key(name)] = GgufValue::of_integer(value);
  };
  metadata["general.architecture"] = GgufValue::of_text(type);
  metadata["general.type"] = GgufValue::of_text("model");
  set("vocab_size", c.vocab_size);
  set("context_length", c.context);
  set("embedding_length", c.width);
  set("block_count", c.layers);
  set("feed_forward_length", c.ffn_width);
  set("attention.head_count", c.heads);
  set("attention.head_count_kv", c.kv_heads);
  set("attention.key_length", c.head_dim);
  set("attention.value_length", c.head_dim);
  set("rope.dimension_count", c.head_dim);
  metadata[key("attention.layer_norm_rms_epsilon")] = GgufValue::of_real(c.norm_eps);
  metadata[key("rope.freq_base")] = GgufValue::of_real(c.rope.theta);
  const RopeScaling& s = c.rope.scaling;
  if (s.kind == Kind::linear || s.kind == Kind::yarn) {
    metadata[key("rope.scaling.type")] =
        GgufValue::of_text(s.kind == Kind::linear ? "linear" : "yarn");
    metadata[key("rope.scaling.factor")] = GgufValue::of_real(s.factor);
  }
  if (s.kind == Kind::yarn) {
    set("rope.scaling.original_context_length", s.original_context);
    metadata[key("rope.scaling.yarn_beta_fast")] = GgufValue::of_real(s.beta_fast);
    metadata[key("rope.scaling.yarn_beta_slow")] = GgufValue::of_real(s.beta_slow);
  }
  // What comes back the same is what the format can say: no second list to keep.
  const GgufTensorFacts facts{.vocabulary = c.vocab_size,
                              .tied = c.tied,
                              .attention_bias = c.biases.qkv,
                              .feed_forward_bias = c.biases.feed_forward,
                              .rope_factors = gguf_rope_factors(c)};
  const Json said = hugging_face_config(
      config_from_hugging_face(hugging_face_config(metadata, facts, "GGUF"), "GGUF"));
  missing = lost_keys(wanted, said);
  require<UnsupportedError>(missing.empty(), "GGUF", "no GGUF of {} can say {}", type,
                            fmt::join(missing, ", "));
  return metadata;
}

std::vector<float> gguf_rope_factors(const ModelConfig& c) {
  if (c.rope.scaling.kind != Kind::llama3) return {};
  return factors_of(c.rope.scaling, c.rope.theta, c.head_dim);
}

std::string registry_name(std::string_view name) {
  for (const auto& [theirs, ours] : kModelNames)
    if (name.starts_with(theirs)) return replaced(name, theirs, ours);
  if (!name.starts_with(kTheirBlocks)) return std::string(name);
  const size_t dot = name.find('.', kTheirBlocks.size());
  if (dot == name.npos) return std::string(name);
  const std::string_view layer = name.substr(kTheirBlocks.size(), dot + 1 - kTheirBlocks.size()),
                         rest = name.substr(dot + 1);
  for (const auto& [theirs, ours] : kBlockNames)
    if (rest.starts_with(theirs))
      return fmt::format("{}{}{}", kOurBlocks, layer, replaced(rest, theirs, ours));
  return std::string(name);
}

std::string gguf_name(std::string_view name) {
  for (const auto& [theirs, ours] : kModelNames)
    if (name.starts_with(ours)) return replaced(name, ours, theirs);
  if (!name.starts_with(kOurBlocks)) return std::string(name);
  const size_t dot = name.find('.', kOurBlocks.size());
  if (dot == name.npos) return std::string(name);
  const std::string_view layer = name.substr(kOurBlocks.size(), dot + 1 - kOurBlocks.size()),
                         rest = name.substr(dot + 1);
  for (const auto& [theirs, ours] : kBlockNames)
    if (rest.starts_with(ours))
      return fmt::format("{}{}{}", kTheirBlocks, layer, replaced(rest, ours, theirs));
  return std::string(name);
}

bool has_rotated_rows(std::string_view name) {
  return name.find(".self_attn.q_proj.") != name.npos ||
         name.find(".self_attn.k_proj.") != name.npos;
}

}  // namespace fovea
