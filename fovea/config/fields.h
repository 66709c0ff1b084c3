// Config structs list their keys once, for readers, writers, help and checks.
//
// A config struct has `void describe(FieldVisitor& v)` that visits every member with its key and
// one line of help. Readers (YAML, JSON, dotted overrides), writers (`--print-config`,
// config.json), the key listing of `--help`, and checks for unknown keys are visitors. The default
// of a key is the member's initialiser and stands nowhere else.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/config/range.h"

namespace fovea {

/// Key and one line of help (units, legal values, source id). A number states its range: readers
/// refuse what is outside, and the key listing shows it.
struct Field {
  std::string_view key;
  std::string_view help;
  Range range = {};
};

class FieldVisitor;

/// A config struct: default-constructible, lists its keys.
template <class T>
concept Described = requires(T value, FieldVisitor& v) {
  value.describe(v);
};

/// Type-erased access to a std::vector of described structs.
struct GroupListAccess {
  std::function<size_t()> size;
  std::function<void(size_t)> resize;  // new elements are default-constructed
  std::function<void(size_t, FieldVisitor&)> describe;
};

class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;

  virtual void boolean(const Field& field, bool& value) = 0;
  virtual void integer(const Field& field, int64_t& value) = 0;
  virtual void real(const Field& field, double& value) = 0;
  virtual void text(const Field& field, std::string& value) = 0;
  /// `index` into `names`: an enum. Use the `choice` helper below.
  virtual void choice_index(const Field& field, int& index,
                            std::span<const std::string_view> names) = 0;
  virtual void integers(const Field& field, std::vector<int64_t>& values) = 0;
  virtual void reals(const Field& field, std::vector<double>& values) = 0;
  virtual void texts(const Field& field, std::vector<std::string>& values) = 0;
  /// A map of further keys.
  virtual void group(const Field& field, const std::function<void(FieldVisitor&)>& describe) = 0;
  /// A list of maps.
  virtual void group_list(const Field& field, const GroupListAccess& access) = 0;

  /// An enum whose names are found by `std::span<const std::string_view> enum_names(E)`
  /// (argument-dependent look-up), in the order of its values from 0.
  template <class E>
  void choice(const Field& field, E& value) {
    int index = static_cast<int>(value);
    choice_index(field, index, enum_names(value));
    value = static_cast<E>(index);
  }
  template <Described T>
  void nested(const Field& field, T& value) {
    group(field, [&value](FieldVisitor& v) { value.describe(v); });
  }
  template <Described T>
  void nested_list(const Field& field, std::vector<T>& values) {
    group_list(field,
               {.size = [&values] { return values.size(); },
                .resize = [&values](size_t n) { values.resize(n); },
                .describe = [&values](size_t i, FieldVisitor& v) { values[i].describe(v); }});
  }
};

/// The name of an enum value.
template <class E>
std::string_view enum_name(E value) {
  return enum_names(value)[static_cast<size_t>(value)];
}

}  // namespace fovea
