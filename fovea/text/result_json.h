// JSON of results: every struct lists its keys once, for writing and reading.
//
// A struct of a result has `template <class V> void describe(V& v, T& value)` in namespace fovea,
// beside the code that writes it:
//   v("tokens", t.tokens);                            must be there when it is read
//   v.optional("plan", t.plan, !t.plan.empty());      written where the condition holds
//   v.derived("perplexity", t.perplexity());          written, not read
//   v.group("speed", [&](auto& inner) { ... });       an object of further keys
// A struct that other layers write has to_json() (and from_json()), made of it by described_json().
// Numbers that are not finite are null in JSON, and NaN when read. Config structs (fields.h) inside
// a result are written by their own description.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <concepts>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/text/utf8.h"

namespace fovea {

template <class T>
concept NamedEnum = std::is_enum_v<T> && requires(T value) {
  enum_names(value);
};

class ResultWriter {
 public:
  using Json = nlohmann::ordered_json;

  template <class T>
  void operator()(const char* key, const T& value) {
    json_[key] = encode(value);
  }
  template <class T>
  void optional(const char* key, const T& value, bool written = true) {
    if (written) json_[key] = encode(value);
  }
  template <class T>
  void derived(const char* key, const T& value) {
    json_[key] = encode(value);
  }
  template <class Describe>
  void group(const char* key, const Describe& describe) {
    ResultWriter inner;
    describe(inner);
    json_[key] = std::move(inner.json_);
  }

  static Json encode(bool value) { return value; }
  static Json encode(std::integral auto value) { return value; }
  static Json encode(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
  static Json encode(const std::string& value) { return repair_utf8(value); }
  static Json encode(std::string_view value) { return repair_utf8(value); }
  static Json encode(const char* value) { return value; }
  static Json encode(const std::filesystem::path& value) { return value.string(); }
  static Json encode(const Json& value) { return value; }
  static Json encode(NamedEnum auto value) { return std::string(enum_name(value)); }
  template <class T>
  static Json encode(const std::optional<T>& value) {
    return value ? encode(*value) : Json(nullptr);
  }
  template <class T>
  static Json encode(const std::vector<T>& values) {
    return list(values);
  }
  template <class T, size_t kCount>
  static Json encode(const std::array<T, kCount>& values) {
    return list(values);
  }
  /// Names with values make an object.
  template <class T>
  static Json encode(const std::vector<std::pair<std::string, T>>& values) {
    return object(values);
  }
  template <class T>
  static Json encode(const std::map<std::string, T>& values) {
    return object(values);
  }
  template <class T>
  requires std::is_class_v<T>
  static Json encode(const T& value) {
    if constexpr (Described<T>) {
      return fields_to_json(value);
    } else if constexpr (requires { value.to_json(); }) {
      return value.to_json();
    } else {
      return of(value);
    }
  }
  /// By describe(), also where the struct has to_json(), which may call this.
  template <class T>
  static Json of(const T& value) {
    ResultWriter writer;
    describe(writer, const_cast<T&>(value));  // which a writer does not change
    return std::move(writer.json_);
  }

 private:
  static Json list(const auto& values) {
    Json list = Json::array();
    for (const auto& value : values) list.push_back(encode(value));
    return list;
  }
  static Json object(const auto& values) {
    Json object = Json::object();
    for (const auto& [key, value] : values) object[repair_utf8(key)] = encode(value);
    return object;
  }

  Json json_ = Json::object();
};

/// Throws `Error` "[where] expected 'runs[0].seed' to be an integer; got string".
template <class Error>
class ResultReader {
 public:
  using Json = nlohmann::ordered_json;

  ResultReader(const Json& json, std::string_view where, std::string place = "")
      : json_(json), where_(where), place_(std::move(place)) {
    expect(json.is_object(), place_.empty() ? "the whole" : place_, "an object", json);
  }

  template <class T>
  void operator()(const char* key, T& value) {
    const auto found = json_.find(key);
    require<Error>(found != json_.end(), where_, "expected the key '{}'; it is missing",
                   inside(key));
    decode(*found, inside(key), value);
  }
  template <class T>
  void optional(const char* key, T& value, bool /*written*/ = true) {
    const auto found = json_.find(key);
    if (found != json_.end()) decode(*found, inside(key), value);
  }
  template <class T>
  void derived(const char*, const T&) {}
  template <class Describe>
  void group(const char* key, const Describe& describe) {
    const auto found = json_.find(key);
    require<Error>(found != json_.end(), where_, "expected the key '{}'; it is missing",
                   inside(key));
    ResultReader inner(*found, where_, inside(key));
    describe(inner);
  }

 private:
  std::string inside(const char* key) const { return place_.empty() ? key : place_ + "." + key; }
  void expect(bool condition, const std::string& place, std::string_view kind,
              const Json& node) const {
    require<Error>(condition, where_, "expected '{}' to be {}; got {}", place, kind,
                   node.type_name());
  }

  void decode(const Json& node, const std::string& place, bool& value) const {
    expect(node.is_boolean(), place, "true or false", node);
    value = node.get<bool>();
  }
  void decode(const Json& node, const std::string& place, std::integral auto& value) const {
    expect(node.is_number_integer(), place, "an integer", node);
    value = node.get<std::remove_cvref_t<decltype(value)>>();
  }
  void decode(const Json& node, const std::string& place, double& value) const {
    expect(node.is_number() || node.is_null(), place, "a number or null", node);
    value = node.is_null() ? std::numeric_limits<double>::quiet_NaN() : node.get<double>();
  }
  void decode(const Json& node, const std::string& place, std::string& value) const {
    expect(node.is_string(), place, "a string", node);
    value = node.get<std::string>();
  }
  void decode(const Json& node, const std::string&, Json& value) const { value = node; }
  void decode(const Json& node, const std::string& place, NamedEnum auto& value) const {
    std::string name;
    decode(node, place, name);
    const auto names = enum_names(value);
    const auto found = std::find(names.begin(), names.end(), name);
    require<Error>(found != names.end(), where_, "expected '{}' to be one of: {}; got '{}'", place,
                   fmt::join(names, ", "), name);
    value = static_cast<std::remove_cvref_t<decltype(value)>>(found - names.begin());
  }
  template <class T>
  void decode(const Json& node, const std::string& place, std::optional<T>& value) const {
    value.reset();
    if (!node.is_null()) decode(node, place, value.emplace());
  }
  template <class T>
  void decode(const Json& node, const std::string& place, std::vector<T>& values) const {
    expect(node.is_array(), place, "a list", node);
    values.assign(node.size(), {});
    for (size_t i = 0; i < node.size(); ++i)
      decode(node[i], fmt::format("{}[{}]", place, i), values[i]);
  }
  template <class T>
  void decode(const Json& node, const std::string& place,
              std::vector<std::pair<std::string, T>>& values) const {
    expect(node.is_object(), place, "an object", node);
    values.clear();
    for (const auto& [key, item] : node.items()) {
      values.emplace_back(key, T{});
      decode(item, place + "." + key, values.back().second);
    }
  }
  template <class T>
  void decode(const Json& node, const std::string& place, std::map<std::string, T>& values) const {
    expect(node.is_object(), place, "an object", node);
    values.clear();
    for (const auto& [key, item] : node.items()) decode(item, place + "." + key, values[key]);
  }
  template <class T>
  requires std::is_class_v<T>
  void decode(const Json& node, const std::string& place, T& value) const {
    if constexpr (requires { T::from_json(node); }) {
      value = T::from_json(node);
    } else {
      ResultReader reader(node, where_, place);
      describe(reader, value);
    }
  }

  const Json& json_;
  std::string_view where_;
  std::string place_;
};

/// The JSON of a struct that has describe().
template <class T>
nlohmann::ordered_json described_json(const T& value) {
  return ResultWriter::of(value);
}

/// The JSON of any value of a result: a number, a list, a struct.
template <class T>
nlohmann::ordered_json result_json(const T& value) {
  return ResultWriter::encode(value);
}

/// Its inverse; keys that nothing describes are left alone.
template <class Error, class T>
void read_result(const nlohmann::ordered_json& json, std::string_view where, T& value) {
  ResultReader<Error> reader(json, where);
  describe(reader, value);
}

}  // namespace fovea
