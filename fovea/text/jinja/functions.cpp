// The global functions.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "fovea/text/jinja/arguments.h"
#include "fovea/text/jinja/builtins.h"

namespace fovea::jinja {
namespace {

// The same as in jinja2's sandbox.
constexpr int64_t kLongestRange = 100'000;
// Bounds of ranges whose arithmetic stays in 64 bits.
constexpr int64_t kFarthestBound = int64_t{1} << 40;

Value make_range(const Arguments& arguments, Budget&) {
  ArgumentReader in("range", arguments);
  const int64_t first = in.integer("start", 0), second = in.integer("stop", 0);
  const int64_t step = in.integer("step", 1);
  in.finish();
  if (arguments.positional.empty() || !arguments.named.empty())
    fault("range() takes one to three numbers");
  const Range range =
      arguments.positional.size() == 1 ? Range{0, first, 1} : Range{first, second, step};
  if (step == 0) fault("the step of range() must not be zero");
  for (const int64_t bound : {first, second, step})
    if (bound > kFarthestBound || bound < -kFarthestBound) fault("range(): {} is too far", bound);
  if (range.size() > kLongestRange) fault("range() is limited to {} elements", kLongestRange);
  return std::make_shared<const Range>(range);
}

/// Entries of the dict given first, if any, and of the arguments by name.
NamedValues entries_of(std::string_view function, const Arguments& arguments) {
  NamedValues entries;
  if (arguments.positional.size() > 1) fault("{}() takes at most one dict", function);
  if (!arguments.positional.empty()) {
    const Dict* dict = arguments.positional[0].dict();
    if (dict == nullptr) refuse("{}() of something else than a dict is not supported", function);
    for (const auto& [key, value] : dict->entries) {
      if (key.text() == nullptr) refuse("{}() with keys that are no strings", function);
      entries.emplace_back(*key.text(), value);
    }
  }
  for (const auto& [name, value] : arguments.named) entries.emplace_back(name, value);
  return entries;
}

Value make_namespace(const Arguments& arguments, Budget& budget) {
  auto space = std::make_shared<Namespace>();
  for (auto& [name, value] : entries_of("namespace", arguments)) {
    budget.step();
    set_attribute(*space, name, std::move(value), budget);
  }
  return space;
}

Value make_dict_of(const Arguments& arguments, Budget& budget) {
  std::vector<std::pair<Value, Value>> entries;
  for (auto& [name, value] : entries_of("dict", arguments))
    entries.emplace_back(Value(name), std::move(value));
  return make_dict(std::move(entries), budget);
}

Value raise_exception(const Arguments& arguments, Budget& budget) {
  ArgumentReader in("raise_exception", arguments);
  const Value message = in.required("message");
  in.finish();
  throw Refusal(to_text(message, budget));
}

Value format_time(const Arguments& arguments, const std::tm& now, Budget& budget) {
  ArgumentReader in("strftime_now", arguments);
  const std::string format = in.text("format");
  in.finish();
  char text[1024];
  const size_t size =
      format.size() > 256 ? 0 : std::strftime(text, sizeof text, format.c_str(), &now);
  if (size == 0 && !format.empty()) fault("strftime_now(): the format is too long or empty");
  return make_text(std::string(text, size), budget);
}

}  // namespace

Value global_function(std::string_view name, const std::tm& now) {
  if (name == "range") return make_callable("range", {}, make_range);
  if (name == "namespace") return make_callable("namespace", {}, make_namespace);
  if (name == "dict") return make_callable("dict", {}, make_dict_of);
  if (name == "raise_exception") return make_callable("raise_exception", {}, raise_exception);
  if (name == "strftime_now") {
    return make_callable("strftime_now", {}, [now](const Arguments& arguments, Budget& budget) {
      return format_time(arguments, now, budget);
    });
  }
  return Value::undefined(fmt::format("'{}' is undefined", name));
}

}  // namespace fovea::jinja
