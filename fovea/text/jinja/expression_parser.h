// Parses expressions, with the precedence of Jinja.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/text/jinja/builtins.h"
#include "fovea/text/jinja/syntax.h"
#include "fovea/text/jinja/token_reader.h"

namespace fovea::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenReader& tokens) : tokens_(tokens) {}

  /// Inside `if` a filter or test without support is no error until it runs, as in jinja2: a
  /// template may have a branch for programs that know it.
  void enter_branch() { ++branches_; }
  void leave_branch() { --branches_; }

  ExpressionPtr parse();
  /// Without "value if condition else other", as the conditions of `if` and the iterable of `for`.
  ExpressionPtr parse_unconditional();
  /// One expression, or a tuple of several with commas between them.
  ExpressionPtr parse_tuple(bool conditional = true);
  /// Filters behind an input, "| trim | upper"; the input itself where there are none.
  ExpressionPtr parse_filters(ExpressionPtr input);
  /// The filters of a filter block, "trim | upper": at least one.
  ExpressionPtr parse_block_filters(ExpressionPtr input);

 private:
  ExpressionPtr make(ExpressionKind kind, Position at, std::vector<ExpressionPtr> parts,
                     std::string name = "");
  template <class... Parts>
  ExpressionPtr node(ExpressionKind kind, Position at, std::string name, Parts... parts);
  /// height of the node from those of its parts, and a limit on it.
  ExpressionPtr measured(ExpressionPtr made);
  bool at_tuple_end() const;

  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenate();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters = true);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_number(const Token& token);
  ExpressionPtr parse_name(const Token& token);
  ExpressionPtr parse_list(Position at);
  ExpressionPtr parse_dict(Position at);
  ExpressionPtr parse_postfix(ExpressionPtr object);
  ExpressionPtr parse_subscript(ExpressionPtr object, Position at);
  ExpressionPtr parse_filter(ExpressionPtr input);
  ExpressionPtr parse_test(ExpressionPtr input);
  /// The arguments in brackets, appended to the node.
  void parse_arguments(Expression& call);

  /// Refuses a filter or test by its name.
  void require_support(Support support, Position at, std::string_view kind,
                       const std::string& name) const;

  TokenReader& tokens_;
  int branches_ = 0;
};

}  // namespace fovea::jinja
