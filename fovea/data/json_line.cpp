// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/json_line.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"

namespace fovea {
namespace {

using SortedJson = nlohmann::json;

// Walks the events of one record and keeps the string under one key of the outermost object.
class FieldFinder : public nlohmann::json_sax<SortedJson> {
 public:
  explicit FieldFinder(std::string_view field) : field_(field) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool binary(binary_t&) override { return value("binary data"); }
  bool string(string_t& text) override {
    if (wanted()) {
      text_ = std::move(text);
      found_ = "text";
      here_ = false;
      return true;
    }
    return value("a string");
  }
  bool start_object(std::size_t) override {
    if (depth_ == 0) is_object_ = true;
    value("an object");
    ++depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    value("a list");
    ++depth_;
    return true;
  }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      here_ = name == field_;
      if (keys_.size() < 20) keys_.push_back(std::move(name));
    }
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const SortedJson::exception&) override {
    syntax_error_ = byte;
    return false;
  }

  JsonLineText result() && {
    if (syntax_error_ > 0)
      return {{}, fmt::format("a JSON error at byte {} of the line", syntax_error_)};
    if (!is_object_) return {{}, "another JSON value"};
    if (found_ == "text") return {std::move(text_), {}};
    if (!found_.empty()) return {{}, fmt::format("{} under '{}'", found_, field_)};
    return {{},
            fmt::format("no key '{}'{} (keys here: {})", field_, did_you_mean(field_, keys_),
                        fmt::join(keys_, ", "))};
  }

 private:
  bool wanted() const { return here_ && depth_ == 1; }
  bool value(std::string_view what) {
    if (wanted()) {
      found_ = what;
      here_ = false;
    }
    return true;
  }

  std::string_view field_;
  int depth_ = 0;
  bool is_object_ = false, here_ = false;  // here_: the next value at depth 1 is the field's
  std::string text_, found_;
  std::vector<std::string> keys_;
  std::size_t syntax_error_ = 0;
};

}  // namespace

JsonLineText text_of_json_line(std::string_view line, std::string_view field) {
  FieldFinder finder(field);
  SortedJson::sax_parse(line, &finder);
  return std::move(finder).result();
}

}  // namespace fovea
