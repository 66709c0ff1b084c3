// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/jinja/access.h"

#include <algorithm>

#include "fovea/text/jinja/loop.h"
#include "fovea/text/jinja/python_text.h"

namespace fovea::jinja {
namespace {

std::optional<Value> own_attribute(const Value& object, const std::string& name) {
  if (const Namespace* space = object.name_space()) {
    for (const auto& [known, value] : space->attributes)
      if (known == name) return value;
    return {};
  }
  if (Loop* loop = object.loop()) return loop->attribute(name);
  return find_method(object, name);
}

/// Position of `index` from the front, or nothing where it is outside.
std::optional<size_t> element_index(int64_t index, int64_t size) {
  if (index < 0) index += size;
  if (index < 0 || index >= size) return {};
  return static_cast<size_t>(index);
}

std::optional<Value> own_item(const Value& object, const Value& key, Budget& budget) {
  if (const Dict* dict = object.dict()) {
    const Value* found = find(*dict, key, budget);
    return found == nullptr ? std::optional<Value>() : *found;
  }
  int64_t number = 0;
  if (!key.integer(number)) return {};
  if (const Sequence* sequence = object.sequence();
      sequence != nullptr && sequence->flavour <= Sequence::Flavour::tuple) {
    const auto at = element_index(number, static_cast<int64_t>(sequence->elements.size()));
    return at ? std::optional(sequence->elements[*at]) : std::nullopt;
  }
  if (const Range* range = object.range()) {
    const auto at = element_index(number, range->size());
    return at ? std::optional(Value(range->at(static_cast<int64_t>(*at)))) : std::nullopt;
  }
  if (const std::string* text = object.text()) {
    budget.take(static_cast<int64_t>(16 * text->size()));
    const auto characters = characters_of(*text);
    const auto at = element_index(number, static_cast<int64_t>(characters.size()));
    return at ? std::optional(Value(characters[*at])) : std::nullopt;
  }
  return {};
}

std::string describe_missing(const Value& object, std::string_view name) {
  if (object.is_none()) return fmt::format("'None' has no attribute '{}'", name);
  return fmt::format("'{} object' has no attribute '{}'", type_name(object), name);
}

/// Indices of a slice: start, start + step, ... before `stop`, `count` of them.
struct Cut {
  int64_t start = 0, stop = 0, step = 1, count = 0;
};

std::optional<int64_t> bound(const Value& value) {
  int64_t number = 0;
  if (value.is_none()) return {};
  if (value.is_undefined()) fail_undefined(value);
  if (!value.integer(number)) fault("slice indices must be integers, not {}", type_name(value));
  return number;
}

Cut cut_of(const Value& first, const Value& last, const Value& stride, int64_t size) {
  const int64_t step = std::clamp(bound(stride).value_or(1), -size - 1, size + 1);
  if (step == 0) fault("slice step cannot be zero");
  const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
  const auto place = [&](const Value& value, int64_t absent) {
    std::optional<int64_t> at = bound(value);
    if (!at) return absent;
    if (*at < 0) *at += size;
    return std::clamp(*at, lowest, highest);
  };
  const int64_t start = place(first, step > 0 ? lowest : highest);
  const int64_t stop = place(last, step > 0 ? highest : lowest);
  return {start, stop, step, Range{start, stop, step}.size()};
}

template <class T>
std::vector<T> take(const std::vector<T>& all, const Cut& cut) {
  std::vector<T> taken;
  for (int64_t i = 0; i < cut.count; ++i)
    taken.push_back(all[static_cast<size_t>(cut.start + i * cut.step)]);
  return taken;
}

}  // namespace

Value get_attribute(const Value& object, const std::string& name, Budget& budget) {
  if (object.is_undefined()) fail_undefined(object);
  if (auto found = own_attribute(object, name)) return std::move(*found);
  if (auto found = own_item(object, Value(name), budget)) return std::move(*found);
  return Value::undefined(describe_missing(object, name));
}

Value get_item(const Value& object, const Value& key, Budget& budget) {
  if (object.is_undefined()) fail_undefined(object);
  if (auto found = own_item(object, key, budget)) return std::move(*found);
  if (key.text() != nullptr) {
    if (auto found = own_attribute(object, *key.text())) return std::move(*found);
    return Value::undefined(describe_missing(object, *key.text()));
  }
  return Value::undefined(
      fmt::format("'{} object' has no element {}", type_name(object), to_repr(key, budget)));
}

Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step,
                Budget& budget) {
  if (object.is_undefined()) fail_undefined(object);
  if (const std::string* text = object.text()) {
    budget.take(static_cast<int64_t>(16 * text->size()));
    const auto characters = characters_of(*text);
    const Cut cut = cut_of(start, stop, step, static_cast<int64_t>(characters.size()));
    std::string out;
    for (const std::string_view character : take(characters, cut)) out += character;
    return make_text(std::move(out), budget).marked_safe(object.is_safe());
  }
  if (const Sequence* sequence = object.sequence();
      sequence != nullptr && sequence->flavour <= Sequence::Flavour::tuple) {
    const auto size = static_cast<int64_t>(sequence->elements.size());
    const Cut cut = cut_of(start, stop, step, size);
    budget.take(cut.count * static_cast<int64_t>(sizeof(Value)));
    return make_sequence(take(sequence->elements, cut), budget, sequence->flavour);
  }
  if (const Range* range = object.range()) {
    const Cut cut = cut_of(start, stop, step, range->size());
    return std::make_shared<const Range>(
        Range{range->at(cut.start), range->at(cut.stop), range->step * cut.step});
  }
  fault("'{}' object has no slices", type_name(object));
}

}  // namespace fovea::jinja
