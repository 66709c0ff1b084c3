// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/sweep.h"

#include <algorithm>
#include <cctype>

#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr size_t kMostVariants = 256;

/// "model.ffn_width" and "384" -> "ffn_width-384"; what is no legal part of a name becomes '-'.
std::string label(const std::string& key, const ConfigNode& value) {
  const size_t dot = key.rfind('.');
  std::string text = fmt::format("{}-{}", dot == std::string::npos ? key : key.substr(dot + 1),
                                 value.kind == ConfigNode::Kind::scalar ? value.scalar : "list");
  std::ranges::replace_if(
      text,
      [](unsigned char c) {
        return !std::isalnum(c) &&
               std::string_view("-_.+").find(static_cast<char>(c)) == std::string_view::npos;
      },
      '-');
  return text;
}

ConfigNode with(const ConfigNode& variant, const std::string& key, const ConfigNode& value) {
  ConfigNode out = variant;
  const ConfigNode* name = variant.find("name");
  const std::string before = name != nullptr ? name->scalar : "";
  const std::string after = before.empty() ? label(key, value) : before + "+" + label(key, value);
  ConfigNode patch = ConfigNode::make_map(value.place), set = ConfigNode::make_map(value.place);
  set.fields.push_back({key, value});
  patch.fields.push_back({"name", ConfigNode::make_scalar(after, value.place)});
  patch.fields.push_back({"set", set});
  if (variant.find("family") == nullptr) {
    patch.fields.push_back(
        {"family", ConfigNode::make_scalar(before.empty() ? "model" : before, value.place)});
  }
  merge_into(out, patch);
  return out;
}

}  // namespace

void expand_sweep(ConfigNode& compare) {
  const ConfigNode* found = compare.find("sweep");
  if (found == nullptr) return;
  const ConfigNode sweep = *found;
  std::erase_if(compare.fields, [](const ConfigField& field) { return field.first == "sweep"; });
  require<ConfigError>(sweep.kind == ConfigNode::Kind::map && !sweep.fields.empty(), sweep.place,
                       "'compare.sweep' must be a map of recipe keys to lists of values, for "
                       "example 'sweep: {{model.layers: [2, 4]}}'");
  ConfigNode* variants = compare.find("variants");
  if (variants == nullptr) {
    ConfigNode list;
    list.kind = ConfigNode::Kind::list;
    list.place = sweep.place;
    list.items.push_back(ConfigNode::make_map(sweep.place));
    compare.fields.push_back({"variants", list});
    variants = compare.find("variants");
  }
  for (const ConfigField& axis : sweep.fields) {
    require<ConfigError>(axis.second.kind == ConfigNode::Kind::list && !axis.second.items.empty(),
                         axis.second.place, "'compare.sweep.{}' must be a list of values",
                         axis.first);
    std::vector<ConfigNode> next;
    for (const ConfigNode& variant : variants->items) {
      for (const ConfigNode& value : axis.second.items)
        next.push_back(with(variant, axis.first, value));
    }
    variants->items = std::move(next);
    require<ConfigError>(variants->items.size() <= kMostVariants, sweep.place,
                         "'compare.sweep' makes {} variants; the most is {}",
                         variants->items.size(), kMostVariants);
  }
}

}  // namespace fovea
