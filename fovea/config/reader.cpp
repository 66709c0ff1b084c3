// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/config/reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

std::string joined(std::span<const std::string_view> names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

template <class T>
[[noreturn]] void outside(std::string_view where, const std::string& key, const Field& field,
                          T value) {
  fail<ConfigError>(where, "'{}' must be {}; got {} ({})", key, field.range.text(), value,
                    field.help);
}

class Reader : public FieldVisitor {
 public:
  Reader(const ConfigNode& node, std::string prefix) : node_(node), prefix_(std::move(prefix)) {
    if (node.kind != ConfigNode::Kind::map && node.kind != ConfigNode::Kind::null) {
      fail<ConfigError>(node.place, "'{}' must be a map of keys; write 'key: value' lines below it",
                        prefix_.empty() ? "the recipe" : prefix_);
    }
  }

  void boolean(const Field& field, bool& value) override {
    const ConfigNode* node = scalar(field, "true or false");
    if (node == nullptr) return;
    const std::string& text = node->scalar;
    if (text == "true" || text == "yes" || text == "on") {
      value = true;
    } else if (text == "false" || text == "no" || text == "off") {
      value = false;
    } else {
      wrong(*node, field, "true or false");
    }
  }
  void integer(const Field& field, int64_t& value) override {
    if (const ConfigNode* node = scalar(field, "a whole number")) value = to_integer(*node, field);
  }
  void real(const Field& field, double& value) override {
    if (const ConfigNode* node = scalar(field, "a number")) value = to_real(*node, field);
  }
  void text(const Field& field, std::string& value) override {
    if (const ConfigNode* node = scalar(field, "text")) value = node->scalar;
  }
  void choice_index(const Field& field, int& index,
                    std::span<const std::string_view> names) override {
    const ConfigNode* node = scalar(field, joined(names));
    if (node == nullptr) return;
    const auto found = std::find(names.begin(), names.end(), node->scalar);
    if (found == names.end()) {
      const std::vector<std::string> candidates(names.begin(), names.end());
      fail<ConfigError>(node->place, "'{}' must be one of {}; got '{}'{}", dotted(field),
                        joined(names), node->scalar, did_you_mean(node->scalar, candidates));
    }
    index = static_cast<int>(found - names.begin());
  }
  void integers(const Field& field, std::vector<int64_t>& values) override {
    read_list(field, values, [&](const ConfigNode& n) { return to_integer(n, field); });
  }
  void reals(const Field& field, std::vector<double>& values) override {
    read_list(field, values, [&](const ConfigNode& n) { return to_real(n, field); });
  }
  void texts(const Field& field, std::vector<std::string>& values) override {
    read_list(field, values, [&](const ConfigNode& n) {
      if (n.kind != ConfigNode::Kind::scalar) wrong(n, field, "a list of texts");
      return n.scalar;
    });
  }
  void group(const Field& field, const std::function<void(FieldVisitor&)>& describe) override {
    const ConfigNode* node = known_node(field);
    if (node != nullptr) read_fields(*node, dotted(field), describe);
  }
  void group_list(const Field& field, const GroupListAccess& access) override {
    const ConfigNode* node = known_node(field);
    if (node == nullptr) return;
    if (node->kind == ConfigNode::Kind::null) {
      access.resize(0);
      return;
    }
    if (node->kind != ConfigNode::Kind::list) wrong(*node, field, "a list ('- key: value' items)");
    access.resize(0);
    access.resize(node->items.size());
    for (size_t i = 0; i < node->items.size(); ++i) {
      read_fields(node->items[i], fmt::format("{}.{}", dotted(field), i),
                  [&](FieldVisitor& v) { access.describe(i, v); });
    }
  }

  /// ConfigError for the first key that no field has.
  void check_unknown() const {
    for (const auto& [key, node] : node_.fields) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      fail<ConfigError>(node.place, "unknown key '{}{}'{}; known here: {}",
                        prefix_.empty() ? "" : prefix_ + ".", key, did_you_mean(key, known_),
                        fmt::join(known_, ", "));
    }
  }

 private:
  std::string dotted(const Field& field) const {
    return prefix_.empty() ? std::string(field.key) : fmt::format("{}.{}", prefix_, field.key);
  }
  const ConfigNode* known_node(const Field& field) {
    known_.emplace_back(field.key);
    return node_.find(field.key);
  }
  const ConfigNode* scalar(const Field& field, const std::string& expected) {
    const ConfigNode* node = known_node(field);
    if (node == nullptr) return nullptr;
    if (node->kind != ConfigNode::Kind::scalar) wrong(*node, field, expected);
    return node;
  }
  [[noreturn]] void wrong(const ConfigNode& node, const Field& field,
                          const std::string& expected) const {
    std::string found = node.scalar;
    if (node.kind == ConfigNode::Kind::null) found = "nothing";
    if (node.kind == ConfigNode::Kind::list) found = "a list";
    if (node.kind == ConfigNode::Kind::map) found = "a map";
    fail<ConfigError>(node.place, "'{}' must be {}; got '{}' ({})", dotted(field), expected, found,
                      field.help);
  }
  int64_t to_integer(const ConfigNode& node, const Field& field) const {
    int64_t value = 0;
    const std::string digits = without_separators(node.scalar);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool whole = error == std::errc{} && end == digits.data() + digits.size();
    if (node.kind != ConfigNode::Kind::scalar || !whole) {
      const double real = node.kind == ConfigNode::Kind::scalar ? parse_real(digits) : std::nan("");
      if (!(std::floor(real) == real && std::abs(real) < 9e15)) {
        wrong(node, field, "a whole number");
      }
      value = static_cast<int64_t>(real);  // "1e6"
    }
    if (!field.range.contains(value)) outside(node.place, dotted(field), field, value);
    return value;
  }
  double to_real(const ConfigNode& node, const Field& field) const {
    const double value = node.kind == ConfigNode::Kind::scalar
                             ? parse_real(without_separators(node.scalar))
                             : std::nan("");
    if (!std::isfinite(value)) wrong(node, field, "a finite number");
    if (!field.range.contains(value)) outside(node.place, dotted(field), field, value);
    return value;
  }
  static std::string without_separators(std::string text) {  // 1_000_000, +3
    std::erase(text, '_');
    if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.erase(0, 1);
    return text;
  }
  static double parse_real(const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && end == text.data() + text.size() ? value : std::nan("");
  }
  template <class T, class Convert>
  void read_list(const Field& field, std::vector<T>& values, Convert convert) {
    const ConfigNode* node = known_node(field);
    if (node == nullptr) return;
    values.clear();
    if (node->kind == ConfigNode::Kind::null) return;
    if (node->kind == ConfigNode::Kind::scalar) {
      values.push_back(convert(*node));
      return;
    }
    if (node->kind != ConfigNode::Kind::list) wrong(*node, field, "a list");
    for (const ConfigNode& item : node->items) values.push_back(convert(item));
  }

  const ConfigNode& node_;
  std::string prefix_;
  std::vector<std::string> known_;
};

/// Refuses numbers outside their range, in structs that were filled by code.
class Checker : public FieldVisitor {
 public:
  Checker(std::string_view where, std::string prefix) : where_(where), prefix_(std::move(prefix)) {}

  void boolean(const Field&, bool&) override {}
  void integer(const Field& field, int64_t& value) override { check(field, value); }
  void real(const Field& field, double& value) override { check(field, value); }
  void text(const Field&, std::string&) override {}
  void choice_index(const Field&, int&, std::span<const std::string_view>) override {}
  void integers(const Field& field, std::vector<int64_t>& values) override {
    for (const int64_t value : values) check(field, value);
  }
  void reals(const Field& field, std::vector<double>& values) override {
    for (const double value : values) check(field, value);
  }
  void texts(const Field&, std::vector<std::string>&) override {}
  void group(const Field& field, const std::function<void(FieldVisitor&)>& describe) override {
    check_fields(where_, dotted(field), describe);
  }
  void group_list(const Field& field, const GroupListAccess& access) override {
    for (size_t i = 0; i < access.size(); ++i)
      check_fields(where_, fmt::format("{}.{}", dotted(field), i),
                   [&](FieldVisitor& v) { access.describe(i, v); });
  }

 private:
  template <class T>
  void check(const Field& field, T value) const {
    if (!field.range.contains(value)) outside(where_, dotted(field), field, value);
  }
  std::string dotted(const Field& field) const {
    return prefix_.empty() ? std::string(field.key) : fmt::format("{}.{}", prefix_, field.key);
  }
  std::string_view where_;
  std::string prefix_;
};

class Writer : public FieldVisitor {
 public:
  Json finish() { return std::move(json_); }

  void boolean(const Field& field, bool& value) override { json_[std::string(field.key)] = value; }
  void integer(const Field& field, int64_t& value) override {
    json_[std::string(field.key)] = value;
  }
  void real(const Field& field, double& value) override { json_[std::string(field.key)] = value; }
  void text(const Field& field, std::string& value) override {
    json_[std::string(field.key)] = value;
  }
  void choice_index(const Field& field, int& index,
                    std::span<const std::string_view> names) override {
    json_[std::string(field.key)] = std::string(names[static_cast<size_t>(index)]);
  }
  void integers(const Field& field, std::vector<int64_t>& values) override {
    json_[std::string(field.key)] = values;
  }
  void reals(const Field& field, std::vector<double>& values) override {
    json_[std::string(field.key)] = values;
  }
  void texts(const Field& field, std::vector<std::string>& values) override {
    json_[std::string(field.key)] = values;
  }
  void group(const Field& field, const std::function<void(FieldVisitor&)>& describe) override {
    json_[std::string(field.key)] = fields_to_json(describe);
  }
  void group_list(const Field& field, const GroupListAccess& access) override {
    Json list = Json::array();
    for (size_t i = 0; i < access.size(); ++i) {
      list.push_back(fields_to_json([&](FieldVisitor& v) { access.describe(i, v); }));
    }
    json_[std::string(field.key)] = std::move(list);
  }

 private:
  Json json_ = Json::object();
};

class Lister : public FieldVisitor {
 public:
  Lister(std::vector<FieldLine>& lines, std::string prefix)
      : lines_(lines), prefix_(std::move(prefix)) {}

  void boolean(const Field& field, bool& value) override {
    add(field, "true|false", value ? "true" : "false");
  }
  void integer(const Field& field, int64_t& value) override {
    add(field, ranged("integer", field), std::to_string(value));
  }
  void real(const Field& field, double& value) override {
    add(field, ranged("number", field), fmt::format("{}", value));
  }
  void text(const Field& field, std::string& value) override {
    add(field, "text", value.empty() ? "''" : value);
  }
  void choice_index(const Field& field, int& index,
                    std::span<const std::string_view> names) override {
    add(field, fmt::format("{}", fmt::join(names, "|")),
        std::string(names[static_cast<size_t>(index)]));
  }
  void integers(const Field& field, std::vector<int64_t>& values) override {
    add(field, ranged("list of integers", field), fmt::format("[{}]", fmt::join(values, ", ")));
  }
  void reals(const Field& field, std::vector<double>& values) override {
    add(field, ranged("list of numbers", field), fmt::format("[{}]", fmt::join(values, ", ")));
  }
  void texts(const Field& field, std::vector<std::string>& values) override {
    add(field, "list of texts", fmt::format("[{}]", fmt::join(values, ", ")));
  }
  void group(const Field& field, const std::function<void(FieldVisitor&)>& describe) override {
    Lister inner(lines_, prefix_ + std::string(field.key) + ".");
    describe(inner);
  }
  void group_list(const Field& field, const GroupListAccess& access) override {
    add(field, "list of maps", "[]");
    const bool empty = access.size() == 0;
    if (empty) access.resize(1);
    Lister inner(lines_, prefix_ + std::string(field.key) + ".N.");
    access.describe(0, inner);
    if (empty) access.resize(0);
  }

 private:
  static std::string ranged(const char* type, const Field& field) {
    return field.range.stated() ? fmt::format("{} {}", type, field.range.text()) : type;
  }
  void add(const Field& field, std::string type, std::string initial) {
    lines_.push_back({prefix_ + std::string(field.key), std::move(type), std::move(initial),
                      std::string(field.help), field.range});
  }
  std::vector<FieldLine>& lines_;
  std::string prefix_;
};

bool is_plain_yaml(const std::string& text) {
  if (text.empty() || text == "null" || text == "~") return false;
  if (std::isspace(static_cast<unsigned char>(text.front())) ||
      std::isspace(static_cast<unsigned char>(text.back()))) {
    return false;
  }
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("_-./ +").find(c) != std::string_view::npos;
  };
  return std::all_of(text.begin(), text.end(), plain) && text.front() != '-';
}

std::string yaml_scalar(const Json& value) {
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    return is_plain_yaml(text) ? text : value.dump();  // JSON strings are YAML strings
  }
  return value.dump();
}

void append_yaml(std::string& out, const Json& value, int indent, const std::string& prefix,
                 const std::vector<FieldLine>* help) {
  for (const auto& [key, item] : value.items()) {
    const std::string dotted = prefix.empty() ? key : prefix + "." + key;
    out += fmt::format("{:{}}{}:", "", indent, key);
    const bool maps = item.is_array() && !item.empty() && item.front().is_object();
    if (item.is_object()) {
      out += item.empty() ? " {}\n" : "\n";
      append_yaml(out, item, indent + 2, dotted, help);
    } else if (maps) {
      out += "\n";
      for (const Json& element : item) {
        std::string inner;
        append_yaml(inner, element, indent + 4, dotted + ".N", help);
        if (inner.empty()) inner = fmt::format("{:{}}{{}}\n", "", indent + 4);
        inner[static_cast<size_t>(indent) + 2] = '-';
        out += inner;
      }
    } else {
      if (item.is_array()) {
        std::vector<std::string> parts;
        for (const Json& element : item) parts.push_back(yaml_scalar(element));
        out += fmt::format(" [{}]", fmt::join(parts, ", "));
      } else {
        out += " " + yaml_scalar(item);
      }
      if (help != nullptr) {
        for (const FieldLine& line : *help) {
          if (line.key == dotted) out += fmt::format("  # {}", line.help);
        }
      }
      out += "\n";
    }
  }
}

}  // namespace

void read_fields(const ConfigNode& node, const std::string& prefix,
                 const DescribeFunction& describe) {
  Reader reader(node, prefix);
  describe(reader);
  reader.check_unknown();
}

void check_fields(std::string_view where, const std::string& prefix,
                  const DescribeFunction& describe) {
  Checker checker(where, prefix);
  describe(checker);
}

Json fields_to_json(const DescribeFunction& describe) {
  Writer writer;
  describe(writer);
  return writer.finish();
}

std::string fields_to_yaml(const DescribeFunction& describe, bool with_help) {
  std::string out;
  const std::vector<FieldLine> lines = with_help ? list_fields(describe) : std::vector<FieldLine>{};
  append_yaml(out, fields_to_json(describe), 0, "", with_help ? &lines : nullptr);
  return out;
}

std::vector<FieldLine> list_fields(const DescribeFunction& describe) {
  std::vector<FieldLine> lines;
  Lister lister(lines, "");
  describe(lister);
  return lines;
}

}  // namespace fovea
