// JsonFields: the fields of a JSON object, read by name, with refusals that name the field.
//
// A field that is null counts as absent. finish() refuses fields that nobody asked for.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/serve/problem.h"

namespace fovea::serve {

/// The JSON object of a request's body. Problem for anything else: no JSON, no UTF-8, nested too
/// deep, or another value than an object.
Json parse_body(std::string_view body);

/// Integers and numbers of a list are token ids: within int32, not negative.
std::vector<int32_t> token_ids(const Json& list, std::string_view name);

class JsonFields {
 public:
  /// `object` must outlive this; a Problem names `name` (a field that holds the object, or "")
  /// where it is no object.
  explicit JsonFields(const Json& object, std::string_view name = "");

  /// The value, or nullptr where it is absent or null.
  const Json* find(std::string_view key);
  std::optional<std::string> text(std::string_view key);
  std::optional<bool> boolean(std::string_view key);
  /// Whole numbers; 2.0 is one.
  std::optional<int64_t> integer(std::string_view key, int64_t least, int64_t most);
  std::optional<double> number(std::string_view key, double least, double most);
  /// A list of whole numbers.
  std::vector<int64_t> integers(std::string_view key, size_t most);

  /// Fields of others' clients that change nothing here.
  void ignore(std::initializer_list<std::string_view> keys);
  /// Refuses these fields by name, unless null, false, or an empty list, object or text.
  void unsupported(std::initializer_list<std::string_view> keys);
  /// Problem naming the first field that nobody asked for, with the nearest known name.
  void finish() const;

 private:
  std::string path(std::string_view key) const;

  const Json& object_;
  std::string name_;
  std::vector<std::string> known_;
};

}  // namespace fovea::serve
