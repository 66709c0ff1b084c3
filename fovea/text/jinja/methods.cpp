// Methods of strings, dicts and lists.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "fovea/text/jinja/access.h"
#include "fovea/text/jinja/arguments.h"
#include "fovea/text/jinja/python_text.h"
#include "fovea/text/jinja/text_functions.h"

namespace fovea::jinja {
namespace {

using Self = const std::string&;
using Method = std::function<Value(Self, ArgumentReader&, Budget&)>;

template <std::string (*map)(std::string_view)>
Value mapped(Self self, ArgumentReader& in, Budget& budget) {
  in.finish();
  budget.take(static_cast<int64_t>(16 * self.size()));  // a view a character
  return make_text(map(self), budget);
}

template <Side side>
Value stripped(Self self, ArgumentReader& in, Budget& budget) {
  const auto characters = in.optional_text("chars");
  in.finish();
  budget.search(self.size(), characters ? characters->size() : 1);
  return make_text(std::string(strip(self, side, characters)), budget);
}

Value text_list(const std::vector<std::string_view>& parts, Budget& budget) {
  Values elements;
  budget.take(static_cast<int64_t>(parts.size() * 64));
  for (const std::string_view part : parts)
    elements.push_back(make_text(std::string(part), budget));
  return make_sequence(std::move(elements), budget);
}

template <bool from_right>
Value split_method(Self self, ArgumentReader& in, Budget& budget) {
  const auto separator = in.optional_text("sep");
  const int64_t most = in.integer("maxsplit", -1);
  in.finish();
  if (separator && separator->empty()) fault("empty separator");
  budget.search(self.size(), separator ? separator->size() : 1);
  budget.take(static_cast<int64_t>(8 * self.size()));
  return text_list(split(self, {separator, most, from_right}), budget);
}

Value split_lines_method(Self self, ArgumentReader& in, Budget& budget) {
  const bool keep_ends = in.flag("keepends", false);
  in.finish();
  budget.take(static_cast<int64_t>(8 * self.size()));
  return text_list(split_lines(self, keep_ends), budget);
}

/// The part of `self` between the optional bounds `start` and `end`, in characters.
Value bounded(Self self, ArgumentReader& in, Budget& budget) {
  const Value start = in.optional("start", None{}), end = in.optional("end", None{});
  in.finish();
  if (start.is_none() && end.is_none()) return self;
  return get_slice(Value(self), start, end, None{}, budget);
}

/// str.startswith() and str.endswith(): an affix, or a tuple of them.
template <bool at_end>
Value has_affix(Self self, ArgumentReader& in, Budget& budget) {
  const Value affix = in.required(at_end ? "suffix" : "prefix");
  const Value part = bounded(self, in, budget);
  const Sequence* tuple = affix.sequence();
  if (affix.is_undefined()) fail_undefined(affix);
  for (const Value& one : tuple == nullptr ? Values{affix} : tuple->elements) {
    if (one.text() == nullptr) {
      fault("startswith and endswith take a string or a tuple of them, not {}", type_name(one));
    }
    budget.read(one.text()->size());
    if (at_end ? part.text()->ends_with(*one.text()) : part.text()->starts_with(*one.text()))
      return true;
  }
  return false;
}

Value replace_method(Self self, ArgumentReader& in, Budget& budget) {
  const std::string from = in.text("old"), to = in.text("new");
  const int64_t most = in.integer("count", -1);
  in.finish();
  return replace_text(self, from, to, most, budget);
}

Value join_method(Self self, ArgumentReader& in, Budget& budget) {
  const Value parts = in.required("iterable");
  in.finish();
  if (parts.is_undefined()) return "";
  std::string out;
  bool first = true;
  for (const Value& part : elements_of(parts, budget)) {
    if (part.is_undefined() || part.text() == nullptr)
      fault("join(): expected a string, found {}", type_name(part));
    budget.take(static_cast<int64_t>(part.text()->size() + self.size()));
    if (!std::exchange(first, false)) out += self;
    out += *part.text();
  }
  return make_text(std::move(out), budget);
}

template <bool from_right>
Value find_text(Self self, ArgumentReader& in, Budget& budget) {
  const std::string needle = in.text("sub");
  in.finish();
  budget.search(self.size(), needle.size());
  const size_t found = from_right ? self.rfind(needle) : self.find(needle);
  if (found == std::string::npos) return int64_t{-1};
  return count_characters(std::string_view(self).substr(0, found));
}

Value count_text(Self self, ArgumentReader& in, Budget& budget) {
  const std::string needle = in.text("sub");
  in.finish();
  budget.search(self.size(), needle.size());
  if (needle.empty()) return count_characters(self) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = self.find(needle, at)) != std::string::npos; at += needle.size())
    ++count;
  return count;
}

template <bool at_end>
Value without_affix(Self self, ArgumentReader& in, Budget& budget) {
  const std::string affix = in.text(at_end ? "suffix" : "prefix");
  in.finish();
  budget.read(affix.size());
  std::string_view rest = self;
  if (at_end && rest.ends_with(affix)) rest.remove_suffix(affix.size());
  if (!at_end && rest.starts_with(affix)) rest.remove_prefix(affix.size());
  return make_text(std::string(rest), budget);
}

template <bool (*test)(std::string_view)>
Value tested(Self self, ArgumentReader& in, Budget& budget) {
  in.finish();
  budget.take(static_cast<int64_t>(16 * self.size()));
  return test(self);
}

bool is_digits(std::string_view text) {
  if (std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
    refuse("isdigit() of text beyond ASCII is not supported");
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

const std::map<std::string_view, Method>& string_methods() {
  static const std::map<std::string_view, Method> methods = {
      {"strip", stripped<Side::both>},
      {"lstrip", stripped<Side::left>},
      {"rstrip", stripped<Side::right>},
      {"split", split_method<false>},
      {"rsplit", split_method<true>},
      {"splitlines", split_lines_method},
      {"startswith", has_affix<false>},
      {"endswith", has_affix<true>},
      {"removeprefix", without_affix<false>},
      {"removesuffix", without_affix<true>},
      {"replace", replace_method},
      {"join", join_method},
      {"find", find_text<false>},
      {"rfind", find_text<true>},
      {"count", count_text},
      {"upper", mapped<upper>},
      {"lower", mapped<lower>},
      {"capitalize", mapped<capitalize>},
      {"title", mapped<title>},
      {"isupper", tested<is_upper>},
      {"islower", tested<is_lower>},
      {"isspace", tested<is_space>},
      {"isdigit", tested<is_digits>},
  };
  return methods;
}

// Methods of Python that are refused by name instead of being undefined.
constexpr std::string_view kOtherStringMethods[] = {
    "casefold",    "center",     "encode",   "expandtabs", "format_map",   "index",
    "isalnum",     "isalpha",    "isascii",  "isdecimal",  "isidentifier", "isnumeric",
    "isprintable", "istitle",    "ljust",    "maketrans",  "partition",    "rindex",
    "rjust",       "rpartition", "swapcase", "translate",  "zfill"};
// The sandbox hides what would change a value.
constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};

bool is_among(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

Value hidden(const Value& object, std::string_view name) {
  return Value::undefined(
      fmt::format("access to attribute '{}' of '{}' object is unsafe", name, type_name(object)));
}

std::optional<Value> string_method(const Value& object, const std::string& name) {
  if (name == "format") {
    return make_callable(name, object, [object](const Arguments& arguments, Budget& budget) {
      return format_text(*object.text(), arguments, budget);
    });
  }
  const auto found = string_methods().find(name);
  if (found == string_methods().end()) {
    if (is_among(kOtherStringMethods, name)) refuse("the method str.{}() is not supported", name);
    return {};
  }
  return make_callable(
      name, object, [object, found](const Arguments& arguments, Budget& budget) -> Value {
        ArgumentReader in(found->first, arguments);
        return found->second(*object.text(), in, budget).marked_safe(object.is_safe());
      });
}

Value dict_view(const Dict& dict, Sequence::Flavour flavour, Budget& budget) {
  Values elements;
  for (const auto& [key, value] : dict.entries) {
    elements.push_back(flavour == Sequence::Flavour::keys ? key
                       : flavour == Sequence::Flavour::values
                           ? value
                           : make_sequence({key, value}, budget, Sequence::Flavour::tuple));
  }
  return make_sequence(std::move(elements), budget, flavour);
}

std::optional<Value> dict_method(const Value& object, const std::string& name) {
  if (is_among(kDictChanges, name)) return hidden(object, name);
  if (name == "get") {
    return make_callable(name, object, [object](const Arguments& arguments, Budget& budget) {
      ArgumentReader in("get", arguments);
      const Value key = in.required("key"), absent = in.optional("default", None{});
      in.finish();
      const Value* found = find(*object.dict(), key, budget);
      return found == nullptr ? absent : *found;
    });
  }
  const Sequence::Flavour flavour = name == "keys"     ? Sequence::Flavour::keys
                                    : name == "values" ? Sequence::Flavour::values
                                                       : Sequence::Flavour::items;
  if (name == "copy") {
    return make_callable(name, object,
                         [object](const Arguments&, Budget&) -> Value { return object; });
  }
  if (name != "items" && flavour == Sequence::Flavour::items) return {};
  return make_callable(name, object,
                       [object, flavour, name](const Arguments& arguments, Budget& budget) {
                         ArgumentReader(name, arguments).finish();
                         return dict_view(*object.dict(), flavour, budget);
                       });
}

std::optional<Value> list_method(const Value& object, const std::string& name) {
  const bool list = object.sequence()->flavour == Sequence::Flavour::list;
  if (object.sequence()->flavour > Sequence::Flavour::tuple) return {};
  if (list && is_among(kListChanges, name)) return hidden(object, name);
  if (list && name == "copy") refuse("the method list.copy() is not supported");
  if (name != "count" && name != "index") return {};
  return make_callable(name, object,
                       [object, name](const Arguments& arguments, Budget& budget) -> Value {
                         ArgumentReader in(name, arguments);
                         const Value wanted = in.required("value");
                         in.finish();
                         const Values& elements = object.sequence()->elements;
                         int64_t count = 0;
                         for (size_t i = 0; i < elements.size(); ++i) {
                           if (!equal(elements[i], wanted, budget)) continue;
                           if (name == "index") return static_cast<int64_t>(i);
                           ++count;
                         }
                         if (name == "index") fault("the value is not in the list");
                         return count;
                       });
}

}  // namespace

std::optional<Value> find_method(const Value& object, const std::string& name) {
  if (object.text() != nullptr) return string_method(object, name);
  if (object.dict() != nullptr) return dict_method(object, name);
  if (object.sequence() != nullptr) return list_method(object, name);
  return {};
}

}  // namespace fovea::jinja
