// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "fovea/checkpoint/family_keys.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using Kind = RopeScaling::Kind;

/// YaRN's length factor: given, by mscale and mscale_all_dim, or by the rule (0).
double attention_factor(const FamilyKeys& keys, double factor) {
  const double given = keys.real("attention_factor", 0.0);
  if (given > 0.0) return given;
  const double one = keys.real("mscale", 0.0), all = keys.real("mscale_all_dim", 0.0);
  if (one == 0.0 || all == 0.0 || factor <= 1.0) return 0.0;
  return (0.1 * one * std::log(factor) + 1.0) / (0.1 * all * std::log(factor) + 1.0);
}

RopeScaling read_scaling(const FamilyKeys& keys, const std::string& rule, int64_t context) {
  RopeScaling s;
  const int64_t original = keys.integer("original_max_position_embeddings", context);
  if (rule == "linear") {
    s = {.kind = Kind::linear, .factor = keys.real("factor", 1.0)};
  } else if (rule == "dynamic") {
    s = {.kind = Kind::dynamic_ntk,
         .factor = keys.real("factor", 1.0),
         .original_context = original};
  } else if (rule == "yarn") {
    const double by_length = static_cast<double>(context) / static_cast<double>(original);
    s = {.kind = Kind::yarn,
         .factor = keys.real("factor", by_length),
         .original_context = original,
         .beta_fast = keys.real("beta_fast", 32.0),
         .beta_slow = keys.real("beta_slow", 1.0),
         .truncate = keys.flag("truncate", true)};
    s.attention_factor = attention_factor(keys, s.factor);
  } else if (rule == "llama3") {
    s = {.kind = Kind::llama3,
         .factor = keys.real("factor", 1.0),
         .original_context = original,
         .low_frequency = keys.real("low_freq_factor", 1.0),
         .high_frequency = keys.real("high_freq_factor", 4.0)};
  } else {
    fail<UnsupportedError>(keys.where(),
                           "expected a RoPE rule of default, linear, dynamic, yarn or llama3; got "
                           "'{}', which the decoder does not have",
                           rule);
  }
  return s;
}

/// None of the families turns a part of the head only.
void refuse_part(const FamilyKeys& keys) {
  require<UnsupportedError>(keys.real("partial_rotary_factor", 1.0) == 1.0, keys.where(),
                            "'partial_rotary_factor' must be 1 in these families; got {}",
                            keys.real("partial_rotary_factor", 1.0));
}

}  // namespace

RopeSpec read_rope(const FamilyKeys& keys, int64_t context) {
  RopeSpec rope;
  refuse_part(keys);
  rope.theta = keys.real("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = keys.find(key);
    if (value == nullptr) continue;
    require<CheckpointError>(value->is_object(), keys.where(), "'{}' must be a map; got {}", key,
                             value->dump());
    const FamilyKeys inner(*value, keys.where());
    const std::string rule = inner.text("rope_type", inner.text("type", "default"));
    if (rule != "default") rope.scaling = read_scaling(inner, rule, context);
    rope.theta = inner.real("rope_theta", rope.theta);
    refuse_part(inner);
  }
  return rope;
}

void write_rope(const RopeSpec& rope, Json& json) {
  const RopeScaling& s = rope.scaling;
  Json rule{{"rope_type", "default"}};
  if (s.kind == Kind::linear) {
    rule = {{"rope_type", "linear"}, {"factor", s.factor}};
  } else if (s.kind == Kind::dynamic_ntk) {
    rule = {{"rope_type", "dynamic"},
            {"factor", s.factor},
            {"original_max_position_embeddings", s.original_context}};
  } else if (s.kind == Kind::yarn) {
    rule = {{"rope_type", "yarn"},
            {"factor", s.factor},
            {"original_max_position_embeddings", s.original_context},
            {"beta_fast", s.beta_fast},
            {"beta_slow", s.beta_slow},
            {"truncate", s.truncate}};
    if (s.attention_factor > 0.0) rule["attention_factor"] = s.attention_factor;
  } else if (s.kind == Kind::llama3) {
    rule = {{"rope_type", "llama3"},
            {"factor", s.factor},
            {"original_max_position_embeddings", s.original_context},
            {"low_freq_factor", s.low_frequency},
            {"high_freq_factor", s.high_frequency}};
  }
  // The older dialect and that of transformers 5.
  json["rope_theta"] = rope.theta;
  if (rule.size() > 1) json["rope_scaling"] = rule;
  json["rope_parameters"] = rule;
  json["rope_parameters"]["rope_theta"] = rope.theta;
}

}  // namespace fovea
