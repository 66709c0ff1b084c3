// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "fovea/text/jinja/loop.h"
#include "fovea/text/jinja/python_text.h"

namespace fovea::jinja {
namespace {

void pay(size_t elements, Budget& budget) {
  budget.take(static_cast<int64_t>(elements * sizeof(Value)));
}

int order(double a, double b) { return a < b ? -1 : a > b ? 1 : 0; }

[[noreturn]] void fail_order(const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) fail_undefined(*value);
  fault("'{}' and '{}' have no order", type_name(a), type_name(b));
}

bool equal_sequences(const Sequence& a, const Sequence& b, Budget& budget) {
  if (a.flavour != b.flavour || a.elements.size() != b.elements.size()) return false;
  for (size_t i = 0; i < a.elements.size(); ++i)
    if (!equal(a.elements[i], b.elements[i], budget)) return false;
  return true;
}

bool equal_dicts(const Dict& a, const Dict& b, Budget& budget) {
  if (a.entries.size() != b.entries.size()) return false;
  return std::ranges::all_of(a.entries, [&](const auto& entry) {
    const Value* other = find(b, entry.first, budget);
    return other != nullptr && equal(entry.second, *other, budget);
  });
}

bool equal_ranges(const Range& a, const Range& b) {
  const int64_t size = a.size();
  return size == b.size() && (size == 0 || (a.start == b.start && (size == 1 || a.step == b.step)));
}

}  // namespace

bool Value::integer(int64_t& number) const {
  if (const auto* integer = std::get_if<int64_t>(&data_)) {
    number = *integer;
    return true;
  }
  if (const bool* truth = boolean()) {
    number = *truth ? 1 : 0;
    return true;
  }
  return false;
}

Value Value::marked_safe(bool safe) const {
  Value marked = *this;
  if (auto* found = std::get_if<Text>(&marked.data_)) found->safe |= safe;
  return marked;
}

bool Value::is_number() const {
  int64_t ignored = 0;
  return floating() != nullptr || integer(ignored);
}

double Value::as_float() const {
  int64_t number = 0;
  if (integer(number)) return static_cast<double>(number);
  return *floating();
}

void Nesting::add(const Value& value) {
  const auto take = [&](const Nesting& inner) {
    depth = std::max(depth, inner.depth + 1);
    holds_namespace |= inner.holds_namespace;
  };
  if (const Sequence* sequence = value.sequence()) take(sequence->nesting);
  if (const Dict* dict = value.dict()) take(dict->nesting);
  if (const Iterator* iterator = value.iterator()) take(iterator->nesting);
  if (const Callable* callable = value.callable()) take(callable->nesting);
  // A loop holds the elements of a container that it was made of.
  if (value.loop() != nullptr) take(value.loop()->nesting());
  if (value.name_space() != nullptr) take({0, true});
  if (depth > kDeepestValue) fault("values nest deeper than {}", kDeepestValue);
}

int64_t Range::size() const {
  // In 128 bits: bounds of both signs would overflow.
  const auto span = static_cast<__int128>(stop) - start;
  if (step > 0) return span <= 0 ? 0 : static_cast<int64_t>((span + step - 1) / step);
  return span >= 0 ? 0 : static_cast<int64_t>((span + step + 1) / step);
}

void set_attribute(Namespace& space, const std::string& name, Value value, Budget& budget) {
  Nesting nesting;
  nesting.add(value);
  if (nesting.holds_namespace) refuse("a namespace inside a namespace is not supported");
  for (auto& [known, attribute] : space.attributes) {
    budget.step();
    if (known != name) continue;
    attribute = std::move(value);
    return;
  }
  budget.take(static_cast<int64_t>(sizeof(Value) + name.size()));
  space.attributes.emplace_back(name, std::move(value));
}

Value make_sequence(Values elements, Budget& budget, Sequence::Flavour flavour) {
  pay(elements.size(), budget);
  Nesting nesting;
  for (const Value& element : elements) nesting.add(element);
  return std::make_shared<const Sequence>(Sequence{std::move(elements), flavour, nesting});
}

Value make_iterator(Values elements, Budget& budget) {
  pay(elements.size(), budget);
  Nesting nesting;
  for (const Value& element : elements) nesting.add(element);
  return std::make_shared<Iterator>(Iterator{std::move(elements), 0, nesting});
}

Value make_dict(std::vector<std::pair<Value, Value>> entries, Budget& budget) {
  pay(2 * entries.size(), budget);
  Dict dict;
  for (auto& [key, value] : entries) {
    require_hashable(key);
    dict.nesting.add(key);
    dict.nesting.add(value);
    if (const Value* known = find(dict, key, budget)) {
      *const_cast<Value*>(known) = std::move(value);
    } else {
      dict.entries.emplace_back(std::move(key), std::move(value));
    }
  }
  return std::make_shared<const Dict>(std::move(dict));
}

Value make_text(std::string text, Budget& budget) {
  budget.take(static_cast<int64_t>(text.size()));
  return Value(std::move(text));
}

Value make_callable(std::string name, const Value& self,
                    std::function<Value(const Arguments&, Budget&)> call) {
  Nesting nesting;
  nesting.add(self);
  return std::make_shared<const Callable>(Callable{std::move(name), std::move(call), nesting});
}

Value from_json(const nlohmann::ordered_json& json, Budget& budget, int depth) {
  budget.step();
  if (depth > kDeepestValue) fault("values nest deeper than {}", kDeepestValue);
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::ordered_json::value_t::number_integer:
      return json.get<int64_t>();
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) fault("the number {} is too large", json.dump());
      return json.get<int64_t>();
    case nlohmann::ordered_json::value_t::number_float:
      return json.get<double>();
    case nlohmann::ordered_json::value_t::string:
      return make_text(json.get<std::string>(), budget);
    case nlohmann::ordered_json::value_t::array: {
      Values elements;
      for (const auto& element : json) elements.push_back(from_json(element, budget, depth + 1));
      return make_sequence(std::move(elements), budget);
    }
    case nlohmann::ordered_json::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;
      for (const auto& [key, value] : json.items())
        entries.emplace_back(Value(key), from_json(value, budget, depth + 1));
      return make_dict(std::move(entries), budget);
    }
    default:
      return None{};
  }
}

std::string_view type_name(const Value& value) {
  if (const Sequence* sequence = value.sequence()) {
    constexpr std::string_view kNames[] = {"list", "tuple", "dict_keys", "dict_values",
                                           "dict_items"};
    return kNames[static_cast<size_t>(sequence->flavour)];
  }
  constexpr std::string_view kNames[] = {
      "Undefined", "NoneType", "bool",      "int",       "float",       "str",     "list",
      "dict",      "range",    "generator", "Namespace", "LoopContext", "function"};
  return kNames[value.data().index()];
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.as_float() != 0;
  if (const std::string* text = value.text()) return !text->empty();
  if (const Sequence* sequence = value.sequence()) return !sequence->elements.empty();
  if (const Dict* dict = value.dict()) return !dict->entries.empty();
  if (const Range* range = value.range()) return range->size() != 0;
  return true;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) {
    int64_t left = 0, right = 0;
    if (a.integer(left) && b.integer(right)) return left == right;
    return a.as_float() == b.as_float();
  }
  if (a.data().index() != b.data().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const std::string* text = a.text()) {
    budget.read(text->size());
    return *text == *b.text();
  }
  if (a.sequence() != nullptr) return equal_sequences(*a.sequence(), *b.sequence(), budget);
  if (a.dict() != nullptr) return equal_dicts(*a.dict(), *b.dict(), budget);
  if (a.range() != nullptr) return equal_ranges(*a.range(), *b.range());
  return a.iterator() == b.iterator() && a.name_space() == b.name_space() && a.loop() == b.loop() &&
         a.callable() == b.callable();
}

int compare(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) {
    int64_t left = 0, right = 0;
    if (a.integer(left) && b.integer(right)) return left < right ? -1 : left > right ? 1 : 0;
    return order(a.as_float(), b.as_float());
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    budget.read(a.text()->size());
    return a.text()->compare(*b.text());
  }
  const Sequence *left = a.sequence(), *right = b.sequence();
  if (left == nullptr || right == nullptr || left->flavour != right->flavour ||
      left->flavour > Sequence::Flavour::tuple) {
    fail_order(a, b);
  }
  const size_t common = std::min(left->elements.size(), right->elements.size());
  for (size_t i = 0; i < common; ++i) {
    if (equal(left->elements[i], right->elements[i], budget)) continue;
    return compare(left->elements[i], right->elements[i], budget);
  }
  return order(static_cast<double>(left->elements.size()),
               static_cast<double>(right->elements.size()));
}

void sort_by_key(std::vector<std::pair<Value, Value>>& keyed, bool descending, Budget& budget) {
  std::vector<std::pair<Value, Value>> merged(keyed.size());
  for (size_t width = 1; width < keyed.size(); width *= 2) {
    for (size_t low = 0; low < keyed.size(); low += 2 * width) {
      const size_t middle = std::min(low + width, keyed.size());
      const size_t high = std::min(low + 2 * width, keyed.size());
      size_t left = low, right = middle;
      for (size_t i = low; i < high; ++i) {
        bool take_right = left == middle;
        if (!take_right && right < high) {
          const int order = compare(keyed[right].first, keyed[left].first, budget);
          take_right = descending ? order > 0 : order < 0;
        }
        merged[i] = std::move(keyed[take_right ? right++ : left++]);
      }
    }
    keyed.swap(merged);
  }
}

const Value* find(const Dict& dict, const Value& key, Budget& budget) {
  for (const auto& [known, value] : dict.entries)
    if (equal(known, key, budget)) return &value;
  return nullptr;
}

void require_hashable(const Value& key) {
  const Sequence* sequence = key.sequence();
  if (key.dict() != nullptr ||
      (sequence != nullptr && sequence->flavour != Sequence::Flavour::tuple)) {
    fault("unhashable type: '{}'", type_name(key));
  }
  if (sequence != nullptr)
    for (const Value& element : sequence->elements) require_hashable(element);
}

bool contains(const Value& haystack, const Value& needle, Budget& budget) {
  if (const std::string* text = haystack.text()) {
    if (needle.text() == nullptr) {
      fault("'in <string>' requires string as left operand, not {}", type_name(needle));
    }
    budget.search(text->size(), needle.text()->size());
    return text->find(*needle.text()) != std::string::npos;
  }
  if (const Dict* dict = haystack.dict()) {
    require_hashable(needle);
    return find(*dict, needle, budget) != nullptr;
  }
  const Values elements = elements_of(haystack, budget);
  return std::ranges::any_of(elements,
                             [&](const Value& element) { return equal(element, needle, budget); });
}

int64_t length(const Value& value, Budget& budget) {
  if (value.is_undefined()) return 0;
  if (const std::string* text = value.text()) {
    budget.read(text->size());
    return count_characters(*text);
  }
  if (const Sequence* sequence = value.sequence())
    return static_cast<int64_t>(sequence->elements.size());
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->entries.size());
  if (const Range* range = value.range()) return range->size();
  if (Loop* loop = value.loop()) return loop->length();
  fault("object of type '{}' has no length", type_name(value));
}

Values elements_of(const Value& value, Budget& budget) {
  Values elements;
  if (const Sequence* sequence = value.sequence()) {
    pay(sequence->elements.size(), budget);
    elements = sequence->elements;
  } else if (const Dict* dict = value.dict()) {
    pay(dict->entries.size(), budget);
    for (const auto& entry : dict->entries) elements.push_back(entry.first);
  } else if (const std::string* text = value.text()) {
    pay(3 * text->size(), budget);  // a string an element
    for (const std::string_view character : characters_of(*text)) elements.emplace_back(character);
  } else if (const Range* range = value.range()) {
    pay(static_cast<size_t>(range->size()), budget);
    for (int64_t i = 0; i < range->size(); ++i) elements.emplace_back(range->at(i));
  } else if (Iterator* iterator = value.iterator()) {
    pay(iterator->elements.size() - iterator->next, budget);
    elements.assign(iterator->elements.begin() + static_cast<std::ptrdiff_t>(iterator->next),
                    iterator->elements.end());
    iterator->next = iterator->elements.size();
  } else if (!value.is_undefined()) {
    fault("'{}' object is not iterable", type_name(value));
  }
  return elements;
}

void fail_undefined(const Value& value) {
  const auto& why = std::get<Undefined>(value.data()).why;
  fault("{}", why == nullptr ? "the value is undefined" : *why);
}

}  // namespace fovea::jinja
