// Values of templates: Python objects, as far as chat templates need them.
//
// Values are shared and immutable, except namespaces, loops and iterators. Containers know how deep
// they nest and are refused beyond kDeepestValue, so functions may recurse through them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fovea/text/jinja/budget.h"

namespace fovea::jinja {

class Loop;
struct Sequence;
struct Dict;
struct Range;
struct Iterator;
struct Namespace;
struct Callable;

/// Stands for what is missing. It prints as nothing and is false; most uses are errors, with `why`.
struct Undefined {
  std::shared_ptr<const std::string> why;
};
struct None {};
/// A string. `safe` strings come from the filters safe and escape. As with jinja2's Markup, text
/// that is added to them with + is escaped for HTML.
struct Text {
  std::shared_ptr<const std::string> text;
  bool safe = false;
};

class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<const Sequence>,
                   std::shared_ptr<const Dict>, std::shared_ptr<const Range>,
                   std::shared_ptr<Iterator>, std::shared_ptr<Namespace>, std::shared_ptr<Loop>,
                   std::shared_ptr<const Callable>>;

  Value() = default;  ///< undefined
  Value(None none) : data_(none) {}
  Value(bool truth) : data_(truth) {}
  Value(int64_t number) : data_(number) {}
  Value(double number) : data_(number) {}
  Value(std::string text) : data_(Text{std::make_shared<const std::string>(std::move(text))}) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  template <class T>
  Value(std::shared_ptr<T> object) : data_(std::move(object)) {}

  static Value undefined(std::string why) {
    Value value;
    value.data_ = Undefined{std::make_shared<const std::string>(std::move(why))};
    return value;
  }

  const Data& data() const { return data_; }
  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const double* floating() const { return std::get_if<double>(&data_); }
  /// The text of a string, else null.
  const std::string* text() const {
    const auto* found = std::get_if<Text>(&data_);
    return found == nullptr ? nullptr : found->text.get();
  }
  bool is_safe() const { return text() != nullptr && std::get<Text>(data_).safe; }
  /// The same; a string becomes a safe one where `safe`.
  Value marked_safe(bool safe = true) const;
  const Sequence* sequence() const { return shared<const Sequence>(); }
  const Dict* dict() const { return shared<const Dict>(); }
  const Range* range() const { return shared<const Range>(); }
  Iterator* iterator() const { return shared<Iterator>(); }
  Namespace* name_space() const { return shared<Namespace>(); }
  Loop* loop() const { return shared<Loop>(); }
  const Callable* callable() const { return shared<const Callable>(); }
  /// An integer, or a boolean as 0 or 1.
  bool integer(int64_t& number) const;
  bool is_number() const;
  /// An integer, boolean or float as a float.
  double as_float() const;

 private:
  template <class T>
  T* shared() const {
    const auto* object = std::get_if<std::shared_ptr<T>>(&data_);
    return object == nullptr ? nullptr : object->get();
  }

  Data data_;
};

using Values = std::vector<Value>;
using NamedValues = std::vector<std::pair<std::string, Value>>;

inline constexpr int kDeepestValue = 100;

/// How deep a container nests, and whether a namespace is in it.
struct Nesting {
  int depth = 0;
  bool holds_namespace = false;
  /// A Fault where it becomes too deep.
  void add(const Value& value);
};

struct Sequence {
  enum class Flavour { list, tuple, keys, values, items };
  Values elements;
  Flavour flavour = Flavour::list;
  Nesting nesting;
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // in order of insertion
  Nesting nesting;
};

struct Range {
  int64_t start = 0, stop = 0, step = 1;
  int64_t size() const;
  int64_t at(int64_t index) const { return start + index * step; }
};

/// A Python generator: elements come once, and it is true even when it is empty.
struct Iterator {
  Values elements;
  size_t next = 0;
  Nesting nesting;
};

struct Namespace {
  NamedValues attributes;
};

/// Adds or replaces. A Fault for values with a namespace in them: it could then hold itself.
void set_attribute(Namespace& space, const std::string& name, Value value, Budget& budget);

struct Arguments {
  Values positional;
  NamedValues named;
};

/// A macro, a global function, or a method bound to its object.
struct Callable {
  std::string name;
  std::function<Value(const Arguments&, Budget&)> call;
  Nesting nesting;
};

/// A list, tuple or view; pays for its elements.
Value make_sequence(Values elements, Budget& budget,
                    Sequence::Flavour flavour = Sequence::Flavour::list);
Value make_iterator(Values elements, Budget& budget);
/// Later entries replace earlier ones of an equal key. A Fault for a key that Python cannot hash.
Value make_dict(std::vector<std::pair<Value, Value>> entries, Budget& budget);
Value make_text(std::string text, Budget& budget);
Value make_callable(std::string name, const Value& self,
                    std::function<Value(const Arguments&, Budget&)> call);
/// `depth` is how deep `json` stands in what is converted.
Value from_json(const nlohmann::ordered_json& json, Budget& budget, int depth = 0);

/// Python's name of the type: "str", "dict", "NoneType".
std::string_view type_name(const Value& value);
bool truth(const Value& value);
bool equal(const Value& a, const Value& b, Budget& budget);
/// Negative, zero or positive as a < b, a == b, a > b; a Fault for what Python does not order.
int compare(const Value& a, const Value& b, Budget& budget);
/// Sorts by the first of each pair, equal ones in their order. A merge sort: the comparison may end
/// in a Fault, and not all values have one order.
void sort_by_key(std::vector<std::pair<Value, Value>>& keyed, bool descending, Budget& budget);
const Value* find(const Dict& dict, const Value& key, Budget& budget);
/// A Fault for what Python cannot hash: lists, dicts, and tuples with them.
void require_hashable(const Value& key);
/// `needle in haystack`.
bool contains(const Value& haystack, const Value& needle, Budget& budget);
/// len(); a Fault for what has none.
int64_t length(const Value& value, Budget& budget);
/// The elements that a `for` visits; an iterator is used up.
Values elements_of(const Value& value, Budget& budget);
/// str(), the text that printing writes.
std::string to_text(const Value& value, Budget& budget);
/// repr(), which lists use for their elements.
std::string to_repr(const Value& value, Budget& budget);

struct JsonStyle {
  bool ascii_only = false, sort_keys = false;
  bool lines = false;  // with `indent`, a line an element
  std::string indent;
  std::string item_separator = ", ", key_separator = ": ";
};
/// Python's json.dumps().
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

/// The Fault of using an undefined value.
[[noreturn]] void fail_undefined(const Value& value);

}  // namespace fovea::jinja
