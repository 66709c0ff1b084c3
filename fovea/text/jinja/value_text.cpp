// Values as text: str(), repr() and json.dumps() of Python.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "fovea/text/jinja/loop.h"
#include "fovea/text/jinja/python_text.h"
#include "fovea/text/jinja/value.h"

namespace fovea::jinja {
namespace {

/// Appends texts and pays for them, so that a value that is shared many times cannot grow past
/// the budget.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}

  void add(std::string_view text) {
    budget_.take(static_cast<int64_t>(text.size()));
    out_ += text;
  }
  std::string finish() { return std::move(out_); }

  void repr(const Value& value) {
    if (const std::string* text = value.text()) {
      add(value.is_safe() ? "Markup(" + repr_of_text(*text) + ")" : repr_of_text(*text));
    } else if (value.is_undefined()) {
      add("Undefined");
    } else {
      text_of(value);
    }
  }

  /// str() of everything but strings and undefined values.
  void text_of(const Value& value) {
    int64_t integer = 0;
    if (value.is_none()) return add("None");
    if (const bool* truth = value.boolean()) return add(*truth ? "True" : "False");
    if (value.integer(integer)) return add(fmt::format("{}", integer));
    if (const double* number = value.floating()) return add(float_text(*number));
    if (value.sequence() != nullptr) return sequence_text(value);
    if (const Dict* dict = value.dict()) return dict_text(*dict);
    if (const Range* range = value.range()) {
      add(fmt::format("range({}, {}", range->start, range->stop));
      return add(range->step == 1 ? ")" : fmt::format(", {})", range->step));
    }
    if (const Namespace* space = value.name_space()) {
      add("<Namespace {");
      bool first = true;
      for (const auto& [name, attribute] : space->attributes) {
        add((std::exchange(first, false) ? "" : ", ") + repr_of_text(name) + ": ");
        repr(attribute);
      }
      return add("}>");
    }
    if (Loop* loop = value.loop())
      return add(fmt::format("<LoopContext {}/{}>", loop->index(), loop->length()));
    add(value.callable() != nullptr ? "<function " + value.callable()->name + ">" : "<generator>");
  }

 private:
  void sequence_text(const Value& value) {
    const Sequence& sequence = *value.sequence();
    const bool tuple = sequence.flavour == Sequence::Flavour::tuple;
    const bool view = sequence.flavour > Sequence::Flavour::tuple;
    if (view) add(fmt::format("{}(", type_name(value)));
    add(tuple ? "(" : "[");
    bool first = true;
    for (const Value& element : sequence.elements) {
      if (!std::exchange(first, false)) add(", ");
      repr(element);
    }
    add(tuple ? (sequence.elements.size() == 1 ? ",)" : ")") : "]");
    if (view) add(")");
  }

  void dict_text(const Dict& dict) {
    add("{");
    bool first = true;
    for (const auto& [key, value] : dict.entries) {
      if (!std::exchange(first, false)) add(", ");
      repr(key);
      add(": ");
      repr(value);
    }
    add("}");
  }

  Budget& budget_;
  std::string out_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget)
      : style_(style), budget_(budget), out_(budget) {}

  void write(const Value& value, int level) {
    int64_t integer = 0;
    if (value.is_none()) return out_.add("null");
    if (const bool* truth = value.boolean()) return out_.add(*truth ? "true" : "false");
    if (value.integer(integer)) return out_.add(fmt::format("{}", integer));
    if (const double* number = value.floating()) return out_.add(number_text(*number));
    if (const std::string* text = value.text())
      return out_.add(json_quoted(*text, style_.ascii_only));
    if (const Sequence* sequence = value.sequence();
        sequence != nullptr && sequence->flavour <= Sequence::Flavour::tuple) {
      return write_list(sequence->elements, level);
    }
    if (const Dict* dict = value.dict()) return write_dict(*dict, level);
    fault("object of type {} is not JSON serializable", type_name(value));
  }
  std::string finish() { return out_.finish(); }

 private:
  static std::string number_text(double number) {
    if (number != number) return "NaN";
    if (number - number != 0) return number < 0 ? "-Infinity" : "Infinity";
    return float_text(number);
  }

  void new_line(int level) {
    if (!style_.lines) return;
    out_.add("\n");
    for (int i = 0; i < level; ++i) out_.add(style_.indent);
  }

  void write_list(const Values& elements, int level) {
    if (elements.empty()) return out_.add("[]");
    out_.add("[");
    bool first = true;
    for (const Value& element : elements) {
      if (!std::exchange(first, false)) out_.add(style_.item_separator);
      new_line(level + 1);
      write(element, level + 1);
    }
    new_line(level);
    out_.add("]");
  }

  static std::string key_text(const Value& key) {
    int64_t integer = 0;
    if (key.text() != nullptr) return *key.text();
    if (key.is_none()) return "null";
    if (const bool* truth = key.boolean()) return *truth ? "true" : "false";
    if (key.integer(integer)) return fmt::format("{}", integer);
    if (key.floating() != nullptr) return number_text(*key.floating());
    fault("keys must be str, int, float, bool or None, not {}", type_name(key));
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.entries.empty()) return out_.add("{}");
    auto entries = dict.entries;
    if (style_.sort_keys) sort_by_key(entries, false, budget_);
    out_.add("{");
    bool first = true;
    for (const auto& [key, value] : entries) {
      if (!std::exchange(first, false)) out_.add(style_.item_separator);
      new_line(level + 1);
      out_.add(json_quoted(key_text(key), style_.ascii_only) + style_.key_separator);
      write(value, level + 1);
    }
    new_line(level);
    out_.add("}");
  }

  const JsonStyle& style_;
  Budget& budget_;
  Writer out_;
};

}  // namespace

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_undefined()) return "";
  if (const std::string* text = value.text()) {
    budget.take(static_cast<int64_t>(text->size()));
    return *text;
  }
  Writer writer(budget);
  writer.text_of(value);
  return writer.finish();
}

std::string to_repr(const Value& value, Budget& budget) {
  Writer writer(budget);
  writer.repr(value);
  return writer.finish();
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return writer.finish();
}

}  // namespace fovea::jinja
