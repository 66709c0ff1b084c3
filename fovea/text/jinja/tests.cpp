// The tests behind `is`.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>

#include "fovea/text/jinja/arguments.h"
#include "fovea/text/jinja/builtins.h"
#include "fovea/text/jinja/operators.h"
#include "fovea/text/jinja/python_text.h"

namespace fovea::jinja {
namespace {

using Check = std::function<bool(const Value&, ArgumentReader&, Budget&)>;

template <bool (*check)(const Value&)>
bool plain(const Value& value, ArgumentReader& in, Budget&) {
  in.finish();
  return check(value);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_string(const Value& value) { return value.text() != nullptr; }
bool is_number(const Value& value) { return value.is_number(); }
bool is_boolean(const Value& value) { return value.boolean() != nullptr; }
bool is_float(const Value& value) { return value.floating() != nullptr; }
bool is_integer(const Value& value) { return std::holds_alternative<int64_t>(value.data()); }
bool is_true(const Value& value) { return value.boolean() != nullptr && *value.boolean(); }
bool is_false(const Value& value) { return value.boolean() != nullptr && !*value.boolean(); }
bool is_mapping(const Value& value) { return value.dict() != nullptr; }
bool is_callable(const Value& value) { return value.callable() != nullptr; }
bool is_iterable(const Value& value) {
  return value.is_undefined() || value.text() != nullptr || value.sequence() != nullptr ||
         value.dict() != nullptr || value.range() != nullptr || value.iterator() != nullptr ||
         value.loop() != nullptr;
}
/// What has a length and elements by number or key.
bool is_sequence(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.is_undefined() || value.text() != nullptr || value.dict() != nullptr ||
         value.range() != nullptr ||
         (sequence != nullptr && sequence->flavour <= Sequence::Flavour::tuple);
}

bool is_odd(const Value& value, ArgumentReader& in, Budget& budget) {
  in.finish();
  return equal(arithmetic("%", value, int64_t{2}, budget), int64_t{1}, budget);
}
bool is_even(const Value& value, ArgumentReader& in, Budget& budget) {
  in.finish();
  return equal(arithmetic("%", value, int64_t{2}, budget), int64_t{0}, budget);
}
bool is_divisible(const Value& value, ArgumentReader& in, Budget& budget) {
  const Value divisor = in.required("num");
  in.finish();
  return equal(arithmetic("%", value, divisor, budget), int64_t{0}, budget);
}

bool is_equal(const Value& value, ArgumentReader& in, Budget& budget) {
  const Value other = in.required("other");
  in.finish();
  return equal(value, other, budget);
}
bool is_other(const Value& value, ArgumentReader& in, Budget& budget) {
  return !is_equal(value, in, budget);
}

bool is_same(const Value& value, ArgumentReader& in, Budget& budget) {
  const Value other = in.required("other");
  in.finish();
  return value.data().index() == other.data().index() && equal(value, other, budget);
}

template <class Order>
bool ordered(const Value& value, ArgumentReader& in, Budget& budget) {
  const Value other = in.required("other");
  in.finish();
  return Order()(compare(value, other, budget), 0);
}

bool is_in(const Value& value, ArgumentReader& in, Budget& budget) {
  const Value all = in.required("seq");
  in.finish();
  return contains(all, value, budget);
}

template <bool (*check)(std::string_view)>
bool of_case(const Value& value, ArgumentReader& in, Budget& budget) {
  in.finish();
  const std::string text = to_text(value, budget);
  budget.take(static_cast<int64_t>(16 * text.size()));
  return check(text);
}

const std::map<std::string_view, Check>& checks() {
  static const std::map<std::string_view, Check> all = {
      {"defined", plain<is_defined>},
      {"undefined", plain<is_undefined>},
      {"none", plain<is_none>},
      {"string", plain<is_string>},
      {"number", plain<is_number>},
      {"integer", plain<is_integer>},
      {"float", plain<is_float>},
      {"boolean", plain<is_boolean>},
      {"true", plain<is_true>},
      {"false", plain<is_false>},
      {"mapping", plain<is_mapping>},
      {"iterable", plain<is_iterable>},
      {"sequence", plain<is_sequence>},
      {"callable", plain<is_callable>},
      {"odd", is_odd},
      {"even", is_even},
      {"divisibleby", is_divisible},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"==", is_equal},
      {"ne", is_other},
      {"!=", is_other},
      {"sameas", is_same},
      {"lt", ordered<std::less<>>},
      {"lessthan", ordered<std::less<>>},
      {"<", ordered<std::less<>>},
      {"le", ordered<std::less_equal<>>},
      {"<=", ordered<std::less_equal<>>},
      {"gt", ordered<std::greater<>>},
      {"greaterthan", ordered<std::greater<>>},
      {">", ordered<std::greater<>>},
      {"ge", ordered<std::greater_equal<>>},
      {">=", ordered<std::greater_equal<>>},
      {"in", is_in},
      {"lower", of_case<is_lower>},
      {"upper", of_case<is_upper>},
  };
  return all;
}

}  // namespace

Support test_support(std::string_view name) {
  if (checks().contains(name)) return Support::supported;
  return name == "escaped" || name == "filter" || name == "test" ? Support::refused
                                                                 : Support::unknown;
}

bool apply_test(const std::string& name, const Value& input, const Arguments& arguments,
                Budget& budget) {
  const auto found = checks().find(name);
  if (found == checks().end()) {
    if (test_support(name) == Support::refused) refuse("the test '{}' is not supported", name);
    fault("there is no test '{}'", name);
  }
  ArgumentReader in(found->first, arguments);
  return found->second(input, in, budget);
}

}  // namespace fovea::jinja
