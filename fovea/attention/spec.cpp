// AttentionSpec: keys and checks, mechanism by mechanism.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/spec.h"

#include <cmath>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/refusals.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

void check_sizes(const AttentionSpec& s) {
  require<ConfigError>(s.heads >= 1, kSpecPlace, "heads must be at least 1; got {}", s.heads);
  require<ConfigError>(s.kv_heads >= 1 && s.heads % s.kv_heads == 0, kSpecPlace,
                       "kv_heads must divide heads; got {} heads and {} kv_heads", s.heads,
                       s.kv_heads);
  require<ConfigError>(s.head_dim >= 1, kSpecPlace, "head_dim must be at least 1; got {}",
                       s.head_dim);
  require<ConfigError>(s.value_dim >= 0, kSpecPlace,
                       "value_dim must be 0 (as head_dim) or larger; got {}", s.value_dim);
}

}  // namespace

void AttentionSpec::describe(FieldVisitor& v) {
  v.integer({"heads", "query heads H", {1, 1 << 17}}, heads);
  v.integer({"kv_heads", "key/value heads, a divisor of heads (GQA, MQA)", {1, 1 << 17}}, kv_heads);
  v.integer({"head_dim", "width d of queries and keys", {1, 1 << 16}}, head_dim);
  v.integer({"value_dim", "width of values; 0 = head_dim", {0, 1 << 16}}, value_dim);
  v.real({"scale", "replaces 1/sqrt(d) when > 0", ranges::kNotNegative}, scale);
  for (const Mechanism* mechanism : mechanisms()) mechanism->describe(*this, v);
  v.integer({"depth", "index of the layer from 0, for lambda_init and head_output.depth_scale",
             ranges::kLayerIndices},
            depth);
}

void AttentionSpec::check() const {
  check_sizes(*this);
  for (const Mechanism* mechanism : mechanisms())
    if (mechanism->check != nullptr) mechanism->check(*this);
  if (const std::optional<Refusal> refused = refusal(*this))
    fail<UnsupportedError>(kSpecPlace, "{}", refused->message());
  require<ConfigError>(depth >= 0, kSpecPlace, "depth must be 0 or larger; got {}", depth);
}

double AttentionSpec::logit_scale() const {
  const double base = scale > 0.0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
  return base / temperature.value;
}

}  // namespace fovea
