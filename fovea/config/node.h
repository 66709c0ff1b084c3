// A parsed config file without the meaning of its keys: scalars, lists and maps with their places
// in the file.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

struct ConfigField;

struct ConfigNode {
  enum class Kind { null, scalar, list, map };

  Kind kind = Kind::null;
  std::string scalar;               // kind scalar: the text as written
  std::vector<ConfigNode> items;    // kind list
  std::vector<ConfigField> fields;  // kind map, in file order, keys unique
  std::string place;                // "recipe.yaml:12", "override", ...

  const ConfigNode* find(std::string_view key) const;
  ConfigNode* find(std::string_view key);
  static ConfigNode make_scalar(std::string text, std::string place = "");
  static ConfigNode make_map(std::string place = "");
};

/// A key of a map and its value. (A std::pair of a type that is not complete yet is not legal
/// everywhere.)
struct ConfigField {
  std::string first;
  ConfigNode second;
};

/// Parses YAML text. ConfigError with file:line for syntax errors and duplicate keys.
ConfigNode parse_yaml(std::string_view text, const std::string& name);
ConfigNode load_yaml(const std::filesystem::path& path);

/// Parses JSON text (duplicate keys are errors here too). ConfigError with name and byte.
ConfigNode parse_json(std::string_view text, const std::string& name);

/// Sets a dotted path ("model.layers", "data.sources.0.path") to the YAML value `text`, creating
/// maps on the way.
void set_override(ConfigNode& root, std::string_view assignment);

/// Lays `patch` over `base`: maps merge key by key, everything else replaces.
void merge_into(ConfigNode& base, const ConfigNode& patch);

}  // namespace fovea
