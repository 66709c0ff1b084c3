// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fovea/base/json_depth.h"
#include "fovea/base/nearest_name.h"

namespace fovea::serve {
namespace {

constexpr size_t kShownValue = 60;           // bytes of a wrong value in a message
constexpr double kExact = 9007199254740992;  // 2^53

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShownValue) text = text.substr(0, kShownValue) + "...";
  return text;
}

/// The whole number that a value is, if it is one.
std::optional<int64_t> whole(const Json& value) {
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number()) return std::nullopt;
  const double real = value.get<double>();
  if (std::abs(real) > kExact || real != std::floor(real)) return std::nullopt;
  return static_cast<int64_t>(real);
}

}  // namespace

Json parse_body(std::string_view body) {
  if (body.find_first_not_of(" \t\r\n") == body.npos)
    refuse("", "expected a JSON object as the body; got an empty body");
  if (json_depth(body) > kMostJsonLevels)
    refuse("", "expected JSON of at most {} levels; the body has more", kMostJsonLevels);
  Json json;
  try {
    json = Json::parse(body);
  } catch (const Json::exception& error) {
    refuse("", "expected a JSON object as the body; {}", error.what());
  }
  if (!json.is_object()) refuse("", "expected a JSON object as the body; got {}", json.type_name());
  return json;
}

std::vector<int32_t> token_ids(const Json& list, std::string_view name) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& value : list) {
    const std::optional<int64_t> id = whole(value);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max())
      refuse(name, "'{}' must hold token ids, whole numbers from 0; got {}", name, shown(value));
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

JsonFields::JsonFields(const Json& object, std::string_view name) : object_(object), name_(name) {
  if (!object.is_object()) refuse(name, "'{}' must be an object; got {}", name, shown(object));
}

std::string JsonFields::path(std::string_view key) const {
  return name_.empty() ? std::string(key) : fmt::format("{}.{}", name_, key);
}

const Json* JsonFields::find(std::string_view key) {
  known_.emplace_back(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> JsonFields::text(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string())
    refuse(path(key), "'{}' must be a text; got {}", path(key), shown(*value));
  return value->get<std::string>();
}

std::optional<bool> JsonFields::boolean(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean())
    refuse(path(key), "'{}' must be true or false; got {}", path(key), shown(*value));
  return value->get<bool>();
}

std::optional<int64_t> JsonFields::integer(std::string_view key, int64_t least, int64_t most) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = whole(*value);
  if (!number || *number < least || *number > most)
    refuse(path(key), "'{}' must be a whole number from {} to {}; got {}", path(key), least, most,
           shown(*value));
  return number;
}

std::optional<double> JsonFields::number(std::string_view key, double least, double most) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= least && number <= most))
    refuse(path(key), "'{}' must be a number from {} to {}; got {}", path(key), least, most,
           shown(*value));
  return number;
}

std::vector<int64_t> JsonFields::integers(std::string_view key, size_t most) {
  const Json* value = find(key);
  std::vector<int64_t> numbers;
  if (value == nullptr) return numbers;
  if (!value->is_array() || value->size() > most)
    refuse(path(key), "'{}' must be a list of at most {} whole numbers; got {}", path(key), most,
           shown(*value));
  for (const Json& element : *value) {
    const std::optional<int64_t> number = whole(element);
    if (!number)
      refuse(path(key), "'{}' must hold whole numbers; got {}", path(key), shown(element));
    numbers.push_back(*number);
  }
  return numbers;
}

void JsonFields::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) known_.emplace_back(key);
}

void JsonFields::unsupported(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    const Json* value = find(key);
    if (value == nullptr) continue;
    const bool off = (value->is_boolean() && !value->get<bool>()) ||
                     ((value->is_array() || value->is_object()) && value->empty()) ||
                     (value->is_string() && value->get_ref<const std::string&>().empty());
    if (!off)
      refuse(path(key), "'{}' is not supported here; leave it out (got {})", path(key),
             shown(*value));
  }
}

void JsonFields::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (std::ranges::find(known_, key) != known_.end()) continue;
    const std::string shown_key = key.size() > kShownValue ? key.substr(0, kShownValue) : key;
    refuse(path(shown_key), "unknown field '{}'{}", path(shown_key), did_you_mean(key, known_));
  }
}

}  // namespace fovea::serve
