// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/jinja/text_functions.h"

#include <algorithm>
#include <charconv>

#include "fovea/text/jinja/access.h"
#include "fovea/text/jinja/python_text.h"

namespace fovea::jinja {
namespace {

/// Whether `word` is a decimal number; it must fit.
bool as_index(std::string_view word, int64_t& index) {
  if (word.empty() || word.find_first_not_of("0123456789") != std::string_view::npos) return false;
  if (std::from_chars(word.data(), word.data() + word.size(), index).ec != std::errc())
    fault("format(): the index {} is too large", word);
  return true;
}

/// The fields of one call of format().
class Fields {
 public:
  Fields(const Arguments& arguments, Budget& budget) : arguments_(arguments), budget_(budget) {}

  std::string text_of(std::string_view field) {
    const size_t name_end = std::min(field.find_first_of(".["), field.size());
    Value value = argument(field.substr(0, name_end));
    for (field.remove_prefix(name_end); !field.empty();) {
      const bool item = field[0] == '[';
      field.remove_prefix(1);
      const size_t end = std::min(item ? field.find(']') : field.find_first_of(".["), field.size());
      const std::string_view name = field.substr(0, end);
      if (name.empty() || (item && end == field.size()))
        fault("format(): expected a name after '.' and a key in '[]'");
      field.remove_prefix(end + (item ? 1 : 0));
      if (item && !field.empty() && field[0] != '.' && field[0] != '[')
        fault("format(): only '.' or '[' may follow ']'");
      int64_t index = 0;
      value = !item                   ? get_attribute(value, std::string(name), budget_)
              : as_index(name, index) ? get_item(value, Value(index), budget_)
                                      : get_item(value, Value(name), budget_);
    }
    return to_text(value, budget_);
  }

 private:
  Value argument(std::string_view name) {
    int64_t index = 0;
    if (name.empty()) {
      if (counting_ == Counting::by_number) fault("format(): {{}} after a field with a number");
      counting_ = Counting::in_order;
      index = next_++;
    } else if (as_index(name, index)) {
      if (counting_ == Counting::in_order) fault("format(): a field with a number after {{}}");
      counting_ = Counting::by_number;
    } else {
      for (const auto& [known, value] : arguments_.named)
        if (known == name) return value;
      fault("format(): there is no argument '{}'", name);
    }
    if (index >= static_cast<int64_t>(arguments_.positional.size()))
      fault("format(): there is no argument {}", index);
    return arguments_.positional[static_cast<size_t>(index)];
  }

  enum class Counting { unknown, in_order, by_number };
  const Arguments& arguments_;
  Budget& budget_;
  Counting counting_ = Counting::unknown;
  int64_t next_ = 0;
};

}  // namespace

Value replace_text(const std::string& text, const std::string& from, const std::string& to,
                   int64_t most, Budget& budget) {
  budget.search(text.size(), from.size());
  size_t count = 0;
  if (from.empty()) {
    count = text.size() + 1;
  } else {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += from.size()) ++count;
  }
  if (most >= 0) count = std::min(count, static_cast<size_t>(most));
  budget.take(static_cast<int64_t>(text.size() + count * to.size()));
  return replace(text, from, to, most);
}

Value format_text(const std::string& pattern, const Arguments& arguments, Budget& budget) {
  Fields fields(arguments, budget);
  std::string out;
  std::string_view rest = pattern;
  while (!rest.empty()) {
    const size_t brace = std::min(rest.find_first_of("{}"), rest.size());
    out += rest.substr(0, brace);
    rest.remove_prefix(brace);
    if (rest.empty()) break;
    if (rest.size() > 1 && rest[0] == rest[1]) {  // {{ and }}
      out += rest[0];
      rest.remove_prefix(2);
      continue;
    }
    const size_t end = rest.find('}');
    if (rest[0] == '}' || end == std::string_view::npos) fault("format(): a single brace");
    const std::string_view field = rest.substr(1, end - 1);
    if (field.find_first_of("{!:") != std::string_view::npos)
      refuse("format(): conversions and format specifications are not supported: {{{}}}", field);
    out += fields.text_of(field);
    rest.remove_prefix(end + 1);
  }
  return make_text(std::move(out), budget);
}

}  // namespace fovea::jinja
