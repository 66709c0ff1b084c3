// Reads one config.json of Hugging Face: typed keys, and its dialects of rotary positions (spec
// 6.2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "fovea/attention/positions/rope.h"
#include "fovea/base/error.h"

namespace fovea {

/// The values of one config.json. A key that is null counts as absent.
class FamilyKeys {
 public:
  FamilyKeys(const nlohmann::ordered_json& json, std::string where)
      : json_(json), where_(std::move(where)) {}

  const nlohmann::ordered_json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  /// CheckpointError where the key is missing or of another type.
  int64_t integer(const char* key) const {
    return present<int64_t>(key, "a whole number below 2^53");
  }
  int64_t integer(const char* key, int64_t absent) const {
    return find(key) == nullptr ? absent : integer(key);
  }
  double real(const char* key, double absent) const {
    return find(key) == nullptr ? absent : present<double>(key, "a number");
  }
  bool flag(const char* key, bool absent) const {
    return find(key) == nullptr ? absent : present<bool>(key, "true or false");
  }
  std::string text(const char* key, const std::string& absent) const {
    return find(key) == nullptr ? absent : present<std::string>(key, "text");
  }
  const std::string& where() const { return where_; }

 private:
  /// Whole and small enough to be multiplied with another size.
  static bool is_count(const nlohmann::ordered_json& value) {
    constexpr int64_t kMost = int64_t{1} << 53;
    if (value.is_number_unsigned() && value.get<uint64_t>() >= kMost) return false;
    const auto within = [](int64_t n) { return n > -kMost && n < kMost; };
    return value.is_number_integer() && within(value.get<int64_t>());
  }
  template <class T>
  T present(const char* key, const char* expected) const {
    const nlohmann::ordered_json* value = find(key);
    require<CheckpointError>(value != nullptr, where_, "expected the key '{}'; it is missing", key);
    const bool fits = std::is_same_v<T, bool>          ? value->is_boolean()
                      : std::is_same_v<T, std::string> ? value->is_string()
                      : std::is_same_v<T, double>      ? value->is_number()
                                                       : is_count(*value);
    require<CheckpointError>(fits, where_, "'{}' must be {}; got {}", key, expected, value->dump());
    return value->get<T>();
  }

  const nlohmann::ordered_json& json_;
  std::string where_;
};

/// theta and scaling rule, of either dialect. UnsupportedError for a rule that is not
/// known: ignoring one would change every number.
RopeSpec read_rope(const FamilyKeys& keys, int64_t context);

/// The keys of both dialects. A rule that Hugging Face does not have is left out.
void write_rope(const RopeSpec& rope, nlohmann::ordered_json& json);

}  // namespace fovea
