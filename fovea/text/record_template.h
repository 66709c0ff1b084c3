// A template over the fields of one record: the prompt of a task, its choices, its answer.
//
// The language is that of chat templates (docs/chat-templates.md): "Question:
// {{question}}\nAnswer:" as a text, `choices.text` or `[a, b]` as an expression whose value is a
// list or a number.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// Immutable: threads may share one.
class RecordTemplate {
 public:
  enum class Form { text, expression };

  RecordTemplate() = default;  ///< empty
  /// `where` is the template's name in errors. InputError for a malformed one, UnsupportedError for
  /// a construct that does not run here; both name line and column.
  RecordTemplate(Form form, std::string_view source, std::string where);

  bool empty() const { return compiled_ == nullptr; }
  /// Fields of the record that it reads, in the order of their first use, but those that it asks
  /// for with `is defined` or `default`: the record may lack them.
  const std::vector<std::string>& fields() const;
  /// The text that it writes. InputError where it fails on this record; `where` then names the
  /// record.
  std::string render(const nlohmann::ordered_json& record, const std::string& where) const;
  /// The value of an expression.
  nlohmann::ordered_json evaluate(const nlohmann::ordered_json& record,
                                  const std::string& where) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace fovea
