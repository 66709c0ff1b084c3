// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/jinja/arguments.h"

namespace fovea::jinja {

const Value* ArgumentReader::next(std::string_view name) {
  const Value* found = nullptr;
  if (position_ < arguments_.positional.size()) found = &arguments_.positional[position_];
  ++position_;
  for (const auto& [given, value] : arguments_.named) {
    if (given != name) continue;
    if (found != nullptr) fault("{}() got multiple values for argument '{}'", function_, name);
    ++named_;
    found = &value;
  }
  return found;
}

Value ArgumentReader::required(std::string_view name) {
  const Value* found = next(name);
  if (found == nullptr) fault("{}() is missing the argument '{}'", function_, name);
  return *found;
}

Value ArgumentReader::optional(std::string_view name, Value absent) {
  const Value* found = next(name);
  return found == nullptr ? std::move(absent) : *found;
}

std::string ArgumentReader::text(std::string_view name) {
  const Value value = required(name);
  if (value.is_undefined()) fail_undefined(value);
  if (value.text() == nullptr)
    fault("{}(): '{}' must be a string, not {}", function_, name, type_name(value));
  return *value.text();
}

std::optional<std::string> ArgumentReader::optional_text(std::string_view name) {
  const Value value = optional(name, None{});
  if (value.is_none()) return {};
  if (value.is_undefined()) fail_undefined(value);
  if (value.text() == nullptr)
    fault("{}(): '{}' must be a string, not {}", function_, name, type_name(value));
  return *value.text();
}

int64_t ArgumentReader::integer(std::string_view name, int64_t absent) {
  const Value* value = next(name);
  if (value == nullptr) return absent;
  int64_t number = 0;
  if (!value->integer(number))
    fault("{}(): '{}' must be an integer, not {}", function_, name, type_name(*value));
  return number;
}

bool ArgumentReader::flag(std::string_view name, bool absent) {
  const Value* value = next(name);
  return value == nullptr ? absent : truth(*value);
}

void ArgumentReader::finish() const {
  if (arguments_.positional.size() > position_) {
    fault("{}() takes at most {} arguments; got {}", function_, position_,
          arguments_.positional.size());
  }
  if (named_ < arguments_.named.size())
    fault("{}() got an argument that it does not have, or one twice", function_);
}

}  // namespace fovea::jinja
