// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/attention_rows.h"

#include <nlohmann/json.hpp>

namespace fovea {

nlohmann::ordered_json AttentionRows::to_json() const {
  using Json = nlohmann::ordered_json;
  const Json inspection =
      inspect_json({.text = {}, .tokens = std::ssize(tokens), .models = {inspected}});
  Json json = inspection.at("models").at(0);
  json["tokens"] = tokens;
  json["pieces"] = inspected.tokens;
  json["rows"] = Json::array();
  for (const AttentionRow& row : rows) {
    Json keys = Json::array(), weights = Json::array();
    for (const KeyWeight& of : row.keys) {
      keys.push_back(of.key);
      weights.push_back(of.weight);
    }
    json["rows"].push_back({{"layer", row.layer},
                            {"head", row.head},
                            {"query", row.query},
                            {"keys", std::move(keys)},
                            {"weights", std::move(weights)},
                            {"rest", row.rest}});
  }
  json["pruned"] = Json::array();
  for (const PrunedKeys& of : pruned)
    json["pruned"].push_back(
        {{"layer", of.layer}, {"query", of.query}, {"visible", of.visible}, {"keys", of.keys}});
  return json;
}

}  // namespace fovea
