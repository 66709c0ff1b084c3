// Cuts a template into text and the tokens of its tags, with the white-space rules of transformers.
//
// trim_blocks and lstrip_blocks are on, and one newline at the end of the file goes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fovea/text/jinja/budget.h"

namespace fovea::jinja {

enum class TokenKind {
  text,         // outside tags
  print_begin,  // {{
  print_end,
  block_begin,  // {%
  block_end,
  name,
  string,   // `text` is its value
  integer,  // `text` has no underscores
  floating,
  op,  // an operator, or a bracket
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;
  Position at;

  bool is_op(std::string_view op) const { return kind == TokenKind::op && text == op; }
  bool is_name(std::string_view name) const { return kind == TokenKind::name && text == name; }
};

/// Throws InputError with the place, which `where` (the template's name) precedes.
std::vector<Token> tokenize(std::string_view source, const std::string& where);

/// "WHERE, line 3, column 7", for errors.
std::string place(const std::string& where, Position at);

}  // namespace fovea::jinja
