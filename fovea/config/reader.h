// Fills described config structs from a ConfigNode, and writes them out again.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fovea/config/fields.h"
#include "fovea/config/node.h"

namespace fovea {

using DescribeFunction = std::function<void(FieldVisitor&)>;

/// Reads `node` into the fields that `describe` visits. Absent keys keep their value. ConfigError
/// for unknown keys (nearest name shown), wrong types, numbers that do not parse and numbers
/// outside their range; the message names file:line and the dotted key.
void read_fields(const ConfigNode& node, const std::string& prefix,
                 const DescribeFunction& describe);

template <Described T>
void read_fields(const ConfigNode& node, T& value, const std::string& prefix = "") {
  read_fields(node, prefix, [&value](FieldVisitor& v) { value.describe(v); });
}

/// ConfigError "[where] 'prefix.key' must be ..." for the first number outside its range: for
/// structs that were filled by code.
void check_fields(std::string_view where, const std::string& prefix,
                  const DescribeFunction& describe);

template <Described T>
void check_fields(std::string_view where, const T& value, const std::string& prefix = "") {
  T copy = value;
  check_fields(where, prefix, [&copy](FieldVisitor& v) { copy.describe(v); });
}

/// Everything `describe` visits as JSON, in order.
nlohmann::ordered_json fields_to_json(const DescribeFunction& describe);

template <Described T>
nlohmann::ordered_json fields_to_json(const T& value) {
  T copy = value;
  return fields_to_json([&copy](FieldVisitor& v) { copy.describe(v); });
}

/// The same as YAML text, two spaces a level, with `# help` comments if asked for.
std::string fields_to_yaml(const DescribeFunction& describe, bool with_help);

template <Described T>
std::string fields_to_yaml(const T& value, bool with_help = false) {
  T copy = value;
  return fields_to_yaml([&copy](FieldVisitor& v) { copy.describe(v); }, with_help);
}

/// One line of the key listing: dotted key, type (of a number with its range), default, help.
struct FieldLine {
  std::string key, type, initial, help;
  Range range;  ///< of numbers
};
std::vector<FieldLine> list_fields(const DescribeFunction& describe);

template <Described T>
std::vector<FieldLine> list_fields() {
  T value;
  return list_fields([&value](FieldVisitor& v) { value.describe(v); });
}

}  // namespace fovea
