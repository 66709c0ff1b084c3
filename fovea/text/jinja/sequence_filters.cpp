// Filters of lists and dicts.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "fovea/text/jinja/access.h"
#include "fovea/text/jinja/filters.h"
#include "fovea/text/jinja/python_text.h"

namespace fovea::jinja {
namespace {

/// The attribute of an element that a filter asks for: "role", "function.name", 0, or none at all.
class AttributePath {
 public:
  AttributePath(const Value& path, Budget& budget) : budget_(budget) {
    int64_t index = 0;
    if (path.is_none()) return;
    if (path.integer(index)) {
      keys_.emplace_back(index);
      return;
    }
    if (path.text() == nullptr) fault("an attribute must be a string or a number");
    for (const std::string_view part : split(*path.text(), {.separator = "."})) {
      const bool digits = !part.empty() && part.size() < 10 &&
                          part.find_first_not_of("0123456789") == std::string_view::npos;
      keys_.push_back(digits ? Value(int64_t{std::stoi(std::string(part))}) : Value(part));
    }
  }
  bool empty() const { return keys_.empty(); }

  /// `absent`, where it is not null, stands for each undefined attribute.
  Value of(Value element, const Value* absent = nullptr) const {
    for (const Value& key : keys_) {
      budget_.step();
      element = get_item(element, key, budget_);
      if (element.is_undefined() && absent != nullptr) element = *absent;
    }
    return element;
  }

 private:
  Budget& budget_;
  Values keys_;
};

/// What sort, unique, min and max compare: texts without regard to case, unless it is asked for.
Value sort_key(const Value& element, bool case_sensitive, Budget& budget) {
  if (case_sensitive || element.text() == nullptr) return element;
  budget.take(static_cast<int64_t>(16 * element.text()->size()));
  return make_text(lower(*element.text()), budget);
}

Value list_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  in.finish();
  return make_sequence(elements_of(input, budget), budget);
}

Value length_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  in.finish();
  return length(input, budget);
}

Value join_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const std::string between = to_text(in.optional("d", ""), budget);
  const AttributePath attribute(in.optional("attribute", None{}), budget);
  in.finish();
  std::string out;
  bool first = true;
  for (const Value& element : elements_of(input, budget)) {
    budget.take(static_cast<int64_t>(between.size()));
    if (!std::exchange(first, false)) out += between;
    out += to_text(attribute.of(element), budget);
  }
  return make_text(std::move(out), budget);
}

Value first_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  in.finish();
  if (Iterator* iterator = input.iterator()) {  // takes one element alone
    if (iterator->next < iterator->elements.size()) return iterator->elements[iterator->next++];
  } else if (Values elements = elements_of(input, budget); !elements.empty()) {
    return elements.front();
  }
  return Value::undefined("No first item, sequence was empty.");
}

Value last_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  in.finish();
  if (input.iterator() != nullptr) fault("'generator' object is not reversible");
  const Values elements = elements_of(input, budget);
  if (!elements.empty()) return elements.back();
  return Value::undefined("No last item, sequence was empty.");
}

Value reverse_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  in.finish();
  if (input.text() != nullptr) return get_slice(input, None{}, None{}, int64_t{-1}, budget);
  Values elements = elements_of(input, budget);
  std::ranges::reverse(elements);
  return make_iterator(std::move(elements), budget);
}

Value sort_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const bool descending = in.flag("reverse", false);
  const bool case_sensitive = in.flag("case_sensitive", false);
  const Value attribute = in.optional("attribute", None{});
  in.finish();
  if (attribute.text() != nullptr && attribute.text()->find(',') != std::string::npos)
    refuse("sort() by several attributes is not supported");
  const AttributePath path(attribute, budget);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& element : elements_of(input, budget))
    keyed.emplace_back(sort_key(path.of(element), case_sensitive, budget), element);
  sort_by_key(keyed, descending, budget);
  Values sorted;
  for (auto& entry : keyed) sorted.push_back(std::move(entry.second));
  return make_sequence(std::move(sorted), budget);
}

Value dictsort_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const bool case_sensitive = in.flag("case_sensitive", false);
  const std::string by = in.optional_text("by").value_or("key");
  const bool descending = in.flag("reverse", false);
  in.finish();
  if (by != "key" && by != "value") fault("dictsort(): 'by' must be key or value");
  if (input.is_undefined()) fail_undefined(input);
  if (input.dict() == nullptr) fault("dictsort of '{}' is not possible", type_name(input));
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.dict()->entries) {
    keyed.emplace_back(sort_key(by == "key" ? key : value, case_sensitive, budget),
                       make_sequence({key, value}, budget, Sequence::Flavour::tuple));
  }
  sort_by_key(keyed, descending, budget);
  Values sorted;
  for (auto& entry : keyed) sorted.push_back(std::move(entry.second));
  return make_sequence(std::move(sorted), budget);
}

Value items_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  in.finish();
  if (input.is_undefined()) return make_iterator({}, budget);
  if (input.dict() == nullptr) fault("items: expected a mapping; got {}", type_name(input));
  Values pairs;
  for (const auto& [key, value] : input.dict()->entries)
    pairs.push_back(make_sequence({key, value}, budget, Sequence::Flavour::tuple));
  return make_iterator(std::move(pairs), budget);
}

Value unique_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const bool case_sensitive = in.flag("case_sensitive", false);
  const AttributePath path(in.optional("attribute", None{}), budget);
  in.finish();
  Values kept, keys;
  for (const Value& element : elements_of(input, budget)) {
    Value key = sort_key(path.of(element), case_sensitive, budget);
    require_hashable(key);
    if (std::ranges::any_of(keys, [&](const Value& known) { return equal(known, key, budget); }))
      continue;
    keys.push_back(std::move(key));
    kept.push_back(element);
  }
  return make_iterator(std::move(kept), budget);
}

template <int sign>
Value extreme_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const bool case_sensitive = in.flag("case_sensitive", false);
  const AttributePath path(in.optional("attribute", None{}), budget);
  in.finish();
  Value best = Value::undefined("No aggregated item, sequence was empty."), best_key;
  bool any = false;
  for (const Value& element : elements_of(input, budget)) {
    Value key = sort_key(path.of(element), case_sensitive, budget);
    if (std::exchange(any, true) && sign * compare(key, best_key, budget) <= 0) continue;
    best = element;
    best_key = std::move(key);
  }
  return best;
}

Value sum_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const AttributePath path(in.optional("attribute", None{}), budget);
  Value sum = in.optional("start", int64_t{0});
  in.finish();
  for (const Value& element : elements_of(input, budget)) {
    const Value part = path.of(element);
    int64_t left = 0, right = 0, total = 0;
    if (!sum.is_number() || !part.is_number())
      fault("sum: '{}' and '{}' cannot be added", type_name(sum), type_name(part));
    if (!sum.integer(left) || !part.integer(right)) {
      sum = sum.as_float() + part.as_float();
    } else if (__builtin_add_overflow(left, right, &total)) {
      fault("the number is too large");
    } else {
      sum = total;
    }
  }
  return sum;
}

/// The arguments behind the first `count` ones, which an inner filter or test gets.
Arguments inner_arguments(const Arguments& arguments, size_t count) {
  Arguments inner;
  const auto begin = arguments.positional.begin();
  inner.positional.assign(begin + static_cast<std::ptrdiff_t>(count), arguments.positional.end());
  inner.named = arguments.named;
  return inner;
}

Value map_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const Arguments& arguments = in.all();
  if (!truth(input)) return make_iterator({}, budget);
  Values mapped;
  if (arguments.positional.empty()) {
    const Value* attribute = nullptr;
    const Value* absent = nullptr;
    for (const auto& [name, value] : arguments.named) {
      if (name != "attribute" && name != "default") fault("map() has no argument '{}'", name);
      (name == "attribute" ? attribute : absent) = &value;
    }
    if (attribute == nullptr) fault("map() requires a filter or an attribute");
    if (absent != nullptr && absent->is_none()) absent = nullptr;
    const AttributePath path(*attribute, budget);
    for (const Value& element : elements_of(input, budget))
      mapped.push_back(path.of(element, absent));
    return make_iterator(std::move(mapped), budget);
  }
  const Value& name = arguments.positional[0];
  if (name.text() == nullptr) fault("map() requires the name of a filter");
  const Arguments inner = inner_arguments(arguments, 1);
  for (const Value& element : elements_of(input, budget))
    mapped.push_back(apply_filter(*name.text(), element, inner, budget));
  return make_iterator(std::move(mapped), budget);
}

/// select, reject, selectattr and rejectattr.
template <bool wanted, bool by_attribute>
Value select_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const Arguments& arguments = in.all();
  const size_t test_at = by_attribute ? 1 : 0;
  if (!truth(input)) return make_iterator({}, budget);
  if (arguments.positional.size() < test_at) fault("the name of the attribute is missing");
  const AttributePath path(by_attribute ? arguments.positional[0] : Value(None{}), budget);
  const bool has_test = arguments.positional.size() > test_at;
  const Value test = has_test ? arguments.positional[test_at] : Value("");
  if (test.text() == nullptr) fault("the name of a test must be a string");
  const Arguments inner = has_test ? inner_arguments(arguments, test_at + 1) : Arguments{};
  Values kept;
  for (const Value& element : elements_of(input, budget)) {
    budget.step();
    const Value value = path.of(element);
    const bool holds = has_test ? apply_test(*test.text(), value, inner, budget) : truth(value);
    if (holds == wanted) kept.push_back(element);
  }
  return make_iterator(std::move(kept), budget);
}

}  // namespace

void add_sequence_filters(FilterTable& table) {
  table["list"] = list_filter;
  table["length"] = table["count"] = length_filter;
  table["join"] = join_filter;
  table["first"] = first_filter;
  table["last"] = last_filter;
  table["reverse"] = reverse_filter;
  table["sort"] = sort_filter;
  table["dictsort"] = dictsort_filter;
  table["items"] = items_filter;
  table["unique"] = unique_filter;
  table["min"] = extreme_filter<-1>;
  table["max"] = extreme_filter<1>;
  table["sum"] = sum_filter;
  table["map"] = map_filter;
  table["select"] = select_filter<true, false>;
  table["reject"] = select_filter<false, false>;
  table["selectattr"] = select_filter<true, true>;
  table["rejectattr"] = select_filter<false, true>;
}

}  // namespace fovea::jinja
