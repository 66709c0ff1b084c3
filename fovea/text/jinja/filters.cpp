// Filters of texts and numbers, and the table of all filters.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "fovea/text/jinja/python_text.h"
#include "fovea/text/jinja/text_functions.h"

namespace fovea::jinja {
namespace {

template <std::string (*map)(std::string_view)>
Value mapped(const Value& input, ArgumentReader& in, Budget& budget) {
  in.finish();
  const std::string text = to_text(input, budget);
  budget.take(static_cast<int64_t>(16 * text.size()));  // a view a character
  return make_text(map(text), budget).marked_safe(input.is_safe());
}

Value title_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  return mapped<title_words>(Value(to_text(input, budget)), in, budget);
}

Value trim_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const auto characters = in.optional_text("chars");
  in.finish();
  const std::string text = to_text(input, budget);
  budget.search(text.size(), characters ? characters->size() : 1);
  return make_text(std::string(strip(text, Side::both, characters)), budget)
      .marked_safe(input.is_safe());
}

Value escape_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  in.finish();
  if (input.is_safe()) return input;
  const std::string text = to_text(input, budget);
  budget.take(static_cast<int64_t>(6 * text.size()));
  return make_text(escaped(text), budget).marked_safe();
}

Value replace_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const Value from = in.required("old"), to = in.required("new");
  const Value count = in.optional("count", None{});
  in.finish();
  int64_t most = -1;
  if (!count.is_none() && !count.integer(most)) fault("replace(): the count must be an integer");
  return replace_text(to_text(input, budget), to_text(from, budget), to_text(to, budget), most,
                      budget);
}

Value default_filter(const Value& input, ArgumentReader& in, Budget&) {
  const Value other = in.optional("default_value", "");
  const bool falsy = in.flag("boolean", false);
  in.finish();
  return input.is_undefined() || (falsy && !truth(input)) ? other : input;
}

/// The margin that a number of blanks, or a string, asks for.
std::string margin_of(std::string_view filter, const Value& width, Budget& budget) {
  if (width.text() != nullptr) return *width.text();
  int64_t blanks = 0;
  if (!width.integer(blanks)) fault("{}(): the indent must be a number or a string", filter);
  blanks = std::max<int64_t>(blanks, 0);
  budget.take(blanks);
  return std::string(static_cast<size_t>(blanks), ' ');
}

Value indent_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const Value width = in.optional("width", int64_t{4});
  const bool first = in.flag("first", false), blank = in.flag("blank", false);
  in.finish();
  if (input.is_undefined()) fail_undefined(input);
  if (input.text() == nullptr) fault("indent of '{}' is not possible", type_name(input));
  const std::string margin = margin_of("indent", width, budget);
  std::string text = *input.text();
  text += '\n';
  budget.take(static_cast<int64_t>(17 * text.size()));
  std::string out;
  bool is_first = true;
  for (const std::string_view line : split_lines(text)) {
    budget.take(static_cast<int64_t>(margin.size()));
    if (!is_first) out += '\n';
    if (is_first ? first : blank || !line.empty()) out += margin;
    out += line;
    is_first = false;
  }
  return make_text(std::move(out), budget).marked_safe(input.is_safe());
}

Value tojson_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  JsonStyle style;
  style.ascii_only = in.flag("ensure_ascii", false);
  const Value indent = in.optional("indent", None{});
  const Value separators = in.optional("separators", None{});
  style.sort_keys = in.flag("sort_keys", false);
  in.finish();
  if (!indent.is_none()) {
    style.lines = true;
    style.item_separator = ',';
    style.indent = margin_of("tojson", indent, budget);
  }
  if (!separators.is_none()) {
    const Sequence* pair = separators.sequence();
    if (pair == nullptr || pair->elements.size() != 2 || pair->elements[0].text() == nullptr ||
        pair->elements[1].text() == nullptr) {
      fault("tojson(): the separators must be two strings");
    }
    style.item_separator = *pair->elements[0].text();
    style.key_separator = *pair->elements[1].text();
  }
  return make_text(to_json(input, style, budget), budget);
}

/// The number that the whole text spells, as Python's int() or float() read it.
template <class Number>
bool spelled(std::string_view text, Number& number) {
  text = strip(text, Side::both);
  if (text.starts_with('+') && !text.substr(1).starts_with('-')) text.remove_prefix(1);
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  return read.ec == std::errc() && read.ptr == end;
}

Value int_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const Value absent = in.optional("default", int64_t{0});
  if (in.integer("base", 10) != 10) refuse("int() of another base than 10 is not supported");
  in.finish();
  if (input.is_undefined()) fail_undefined(input);
  int64_t number = 0;
  double real = 0;
  if (input.integer(number)) return number;
  if (input.text() != nullptr) {
    budget.read(input.text()->size());
    if (spelled(*input.text(), number)) return number;
    if (!spelled(*input.text(), real)) return absent;
  } else if (input.floating() != nullptr) {
    real = *input.floating();
  } else {
    return absent;
  }
  if (!std::isfinite(real)) return absent;
  if (std::fabs(real) > 9e18) fault("the number {} is too large", real);
  return static_cast<int64_t>(real);
}

Value float_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  const Value absent = in.optional("default", 0.0);
  in.finish();
  if (input.is_undefined()) fail_undefined(input);
  double real = 0;
  if (input.is_number()) return input.as_float();
  if (input.text() == nullptr) return absent;
  budget.read(input.text()->size());
  return spelled(*input.text(), real) ? Value(real) : absent;
}

Value abs_filter(const Value& input, ArgumentReader& in, Budget&) {
  in.finish();
  int64_t number = 0;
  if (input.is_undefined()) fail_undefined(input);
  if (input.floating() != nullptr) return std::fabs(*input.floating());
  if (!input.integer(number)) fault("abs of '{}' is not possible", type_name(input));
  if (number == INT64_MIN) fault("the number is too large");
  return number < 0 ? -number : number;
}

Value round_filter(const Value& input, ArgumentReader& in, Budget&) {
  const int64_t precision = in.integer("precision", 0);
  const std::string method = in.optional_text("method").value_or("common");
  in.finish();
  if (input.is_undefined()) fail_undefined(input);
  if (!input.is_number()) fault("round of '{}' is not possible", type_name(input));
  if (precision < 0 || precision > 15) refuse("round() takes a precision of 0 to 15");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return std::ceil(input.as_float() * scale) / scale;
  if (method == "floor") return std::floor(input.as_float() * scale) / scale;
  if (method != "common") fault("round(): the method must be common, ceil or floor");
  if (int64_t number = 0; input.integer(number)) return number;
  if (!std::isfinite(input.as_float())) return input;
  // Decimal rounding of the exact binary value, as Python rounds.
  const std::string text = fmt::format("{:.{}f}", input.as_float(), precision);
  double rounded = 0;
  std::from_chars(text.data(), text.data() + text.size(), rounded);
  return rounded;
}

Value string_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  in.finish();
  return input.text() != nullptr ? input : make_text(to_text(input, budget), budget);
}

Value safe_filter(const Value& input, ArgumentReader& in, Budget& budget) {
  return string_filter(input, in, budget).marked_safe();
}

const FilterTable& filters() {
  static const FilterTable table = [] {
    FilterTable all = {
        {"trim", trim_filter},     {"upper", mapped<upper>},
        {"lower", mapped<lower>},  {"capitalize", mapped<capitalize>},
        {"title", title_filter},   {"escape", escape_filter},
        {"e", escape_filter},      {"replace", replace_filter},
        {"indent", indent_filter}, {"string", string_filter},
        {"safe", safe_filter},     {"default", default_filter},
        {"d", default_filter},     {"tojson", tojson_filter},
        {"int", int_filter},       {"float", float_filter},
        {"abs", abs_filter},       {"round", round_filter},
    };
    add_sequence_filters(all);
    return all;
  }();
  return table;
}

}  // namespace

Support filter_support(std::string_view name) {
  if (filters().contains(name)) return Support::supported;
  constexpr std::string_view kRefused[] = {
      "attr",      "batch",  "center",    "filesizeformat", "forceescape", "format",
      "groupby",   "pprint", "random",    "slice",          "striptags",   "truncate",
      "urlencode", "urlize", "wordcount", "wordwrap",       "xmlattr"};
  return std::ranges::find(kRefused, name) != std::end(kRefused) ? Support::refused
                                                                 : Support::unknown;
}

Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments,
                   Budget& budget) {
  const auto found = filters().find(name);
  if (found == filters().end()) {
    if (filter_support(name) == Support::refused) refuse("the filter '{}' is not supported", name);
    fault("there is no filter '{}'", name);
  }
  ArgumentReader in(found->first, arguments);
  return found->second(input, in, budget);
}

}  // namespace fovea::jinja
