// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "fovea/text/jinja/python_text.h"

namespace fovea::jinja {
namespace {

[[noreturn]] void fail_large() { fault("the number is too large"); }

int64_t floor_divide(int64_t left, int64_t right) {
  if (right == 0) fault("division by zero");
  if (right == -1) {
    int64_t result = 0;
    if (__builtin_sub_overflow(int64_t{0}, left, &result)) fail_large();
    return result;
  }
  return left / right - (left % right != 0 && (left < 0) != (right < 0) ? 1 : 0);
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if (exponent % 2 != 0 && __builtin_mul_overflow(result, base, &result)) fail_large();
    exponent /= 2;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_large();
  }
  return result;
}

Value of_integers(std::string_view op, int64_t left, int64_t right) {
  int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(left, right, &result)) fail_large();
  } else if (op == "-") {
    if (__builtin_sub_overflow(left, right, &result)) fail_large();
  } else if (op == "*") {
    if (__builtin_mul_overflow(left, right, &result)) fail_large();
  } else if (op == "//") {
    result = floor_divide(left, right);
  } else if (op == "%") {
    result = right == -1 ? 0 : left - floor_divide(left, right) * right;
  } else if (op == "**" && right >= 0) {
    result = power(left, right);
  } else if (op == "**") {
    if (left == 0) fault("division by zero");
    return std::pow(static_cast<double>(left), static_cast<double>(right));
  } else {
    if (right == 0) fault("division by zero");
    return static_cast<double>(left) / static_cast<double>(right);
  }
  return result;
}

Value of_floats(std::string_view op, double left, double right) {
  if (op == "+") return left + right;
  if (op == "-") return left - right;
  if (op == "*") return left * right;
  if (op == "**") {
    if (left < 0 && right != std::floor(right)) fault("complex numbers are not supported");
    const double result = std::pow(left, right);
    if (std::isinf(result) && std::isfinite(left) && std::isfinite(right)) fail_large();
    return result;
  }
  if (right == 0) fault("division by zero");
  if (op == "/") return left / right;
  double rest = std::fmod(left, right);
  if (rest != 0 && (rest < 0) != (right < 0)) rest += right;
  if (op == "%") return rest == 0 ? std::copysign(0.0, right) : rest;
  return std::round((left - rest) / right);
}

Value concatenate(const Sequence& left, const Sequence& right, Budget& budget) {
  budget.take(static_cast<int64_t>((left.elements.size() + right.elements.size()) * sizeof(Value)));
  Values elements = left.elements;
  elements.insert(elements.end(), right.elements.begin(), right.elements.end());
  return make_sequence(std::move(elements), budget, left.flavour);
}

/// Strings of which one is safe: the other one is escaped.
Value add_safe(const Value& left, const Value& right, Budget& budget) {
  std::string text;
  for (const Value* part : {&left, &right}) {
    budget.take(static_cast<int64_t>(6 * part->text()->size()));
    text += part->is_safe() ? *part->text() : escaped(*part->text());
  }
  return Value(std::move(text)).marked_safe();
}

/// A text or list `count` times.
Value repeat(const Value& value, int64_t count, Budget& budget) {
  count = std::max<int64_t>(count, 0);
  const Sequence* sequence = value.sequence();
  const auto size = static_cast<int64_t>(
      sequence == nullptr ? value.text()->size() : sequence->elements.size() * sizeof(Value));
  int64_t bytes = 0;
  if (__builtin_mul_overflow(size, count, &bytes)) bytes = INT64_MAX;
  budget.take(bytes);
  if (size == 0) return value;
  if (sequence == nullptr) {
    std::string text;
    text.reserve(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < count; ++i) text += *value.text();
    return make_text(std::move(text), budget).marked_safe(value.is_safe());
  }
  Values elements;
  for (int64_t i = 0; i < count; ++i)
    elements.insert(elements.end(), sequence->elements.begin(), sequence->elements.end());
  return make_sequence(std::move(elements), budget, sequence->flavour);
}

bool is_repeatable(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.text() != nullptr ||
         (sequence != nullptr && sequence->flavour <= Sequence::Flavour::tuple);
}

}  // namespace

Value arithmetic(std::string_view op, const Value& left, const Value& right, Budget& budget) {
  int64_t a = 0, b = 0;
  if (left.integer(a) && right.integer(b)) return of_integers(op, a, b);
  if (left.is_number() && right.is_number())
    return of_floats(op, left.as_float(), right.as_float());
  if (op == "+" && left.text() != nullptr && right.text() != nullptr) {
    budget.take(static_cast<int64_t>(left.text()->size() + right.text()->size()));
    if (left.is_safe() || right.is_safe()) return add_safe(left, right, budget);
    return Value(*left.text() + *right.text());
  }
  if (op == "+" && is_repeatable(left) && is_repeatable(right) && left.sequence() != nullptr &&
      right.sequence() != nullptr && left.sequence()->flavour == right.sequence()->flavour) {
    return concatenate(*left.sequence(), *right.sequence(), budget);
  }
  if (op == "*" && is_repeatable(left) && right.integer(b)) return repeat(left, b, budget);
  if (op == "*" && is_repeatable(right) && left.integer(a)) return repeat(right, a, budget);
  for (const Value* value : {&left, &right})
    if (value->is_undefined()) fail_undefined(*value);
  if (op == "%" && left.text() != nullptr) refuse("formatting with '%' is not supported");
  fault("unsupported operands for {}: '{}' and '{}'", op, type_name(left), type_name(right));
}

Value negative(const Value& value) {
  int64_t number = 0;
  if (value.is_undefined()) fail_undefined(value);
  if (value.floating() != nullptr) return -*value.floating();
  if (!value.integer(number)) fault("bad operand for unary -: '{}'", type_name(value));
  return of_integers("-", 0, number);
}

Value positive(const Value& value) {
  int64_t number = 0;
  if (value.is_undefined()) fail_undefined(value);
  if (value.floating() != nullptr) return value;
  if (!value.integer(number)) fault("bad operand for unary +: '{}'", type_name(value));
  return number;
}

bool comparison(std::string_view op, const Value& left, const Value& right, Budget& budget) {
  if (op == "==") return equal(left, right, budget);
  if (op == "!=") return !equal(left, right, budget);
  if (op == "in") return contains(right, left, budget);
  if (op == "not in") return !contains(right, left, budget);
  const int order = compare(left, right, budget);
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  return order >= 0;
}

}  // namespace fovea::jinja
