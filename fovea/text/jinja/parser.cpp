// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "fovea/base/printable.h"
#include "fovea/text/jinja/expression_parser.h"
#include "fovea/text/jinja/token_reader.h"

namespace fovea::jinja {
namespace {

using Kind = StatementKind;

class Parser {
 public:
  Parser(std::string_view source, const std::string& where)
      : tokens_(tokenize(source, where), where), expressions_(tokens_) {}

  Block parse_template() {
    Block block = parse_block({});
    if (tokens_.peek().kind != TokenKind::end) {
      fail_tag(tokens_.peek());
    }
    return block;
  }

 private:
  /// Statements up to a tag of one of `ends`, whose name is then the current token.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    const TokenReader::Depth depth(tokens_);
    Block block;
    for (;;) {
      const Token token = tokens_.peek();
      if (token.kind == TokenKind::end) {
        if (ends.size() == 0) return block;
        tokens_.fail_here("the template ends inside a block: expected {{% {} %}}",
                          *(ends.end() - 1));
      }
      tokens_.take();
      if (token.kind == TokenKind::text) {
        block.push_back({.kind = Kind::text, .at = token.at, .text = token.text});
      } else if (token.kind == TokenKind::print_begin) {
        Statement print{.kind = Kind::print, .at = token.at};
        print.expressions.push_back(expressions_.parse_tuple());
        tokens_.expect_end(TokenKind::print_end);
        block.push_back(std::move(print));
      } else {
        const Token& name = tokens_.peek();
        if (name.kind == TokenKind::name && std::ranges::find(ends, name.text) != ends.end())
          return block;
        block.push_back(parse_statement(token.at));
      }
    }
  }

  /// The tag's rest, its block, and the end tag.
  Block parse_body(std::string_view end) {
    tokens_.expect_end(TokenKind::block_end);
    Block body = parse_block({end});
    tokens_.take();
    tokens_.expect_end(TokenKind::block_end);
    return body;
  }

  Statement parse_statement(Position at) {
    const Token tag = tokens_.peek();
    if (tag.kind != TokenKind::name)
      tokens_.fail_here("expected the name of a tag; got {}", TokenReader::describe(tag));
    if (tag.text == "if") return parse_if(at);
    if (tag.text == "for") return parse_for(at);
    if (tag.text == "set") return parse_set(at);
    if (tag.text == "macro") return parse_macro(at);
    if (tag.text == "with") return parse_with(at);
    if (tag.text == "filter") return parse_filter_block(at);
    if (tag.text == "generation") return parse_generation(at);
    if (tag.text == "break" || tag.text == "continue") {
      if (loops_ == 0) tokens_.fail_here("'{}' stands outside a loop", tag.text);
      tokens_.take();
      tokens_.expect_end(TokenKind::block_end);
      return {.kind = tag.text == "break" ? Kind::break_loop : Kind::continue_loop, .at = at};
    }
    fail_tag(tag);
  }

  [[noreturn]] void fail_tag(const Token& tag) {
    constexpr std::string_view kRefused[] = {"autoescape", "block", "call",   "do",      "debug",
                                             "extends",    "from",  "import", "include", "trans"};
    if (std::ranges::find(kRefused, tag.text) != std::end(kRefused))
      tokens_.refuse_at(tag.at, "the tag '{}' is not supported in templates", tag.text);
    tokens_.fail_here("unexpected tag '{}'", printable_line(tag.text));
  }

  Statement parse_if(Position at) {
    Statement made{.kind = Kind::if_else, .at = at};
    tokens_.take();
    expressions_.enter_branch();
    for (bool more = true; more;) {
      made.expressions.push_back(expressions_.parse_tuple(false));
      tokens_.expect_end(TokenKind::block_end);
      made.blocks.push_back(parse_block({"elif", "else", "endif"}));
      more = tokens_.skip_name("elif");
    }
    if (tokens_.skip_name("else")) {
      tokens_.expect_end(TokenKind::block_end);
      made.blocks.push_back(parse_block({"endif"}));
    }
    expressions_.leave_branch();
    tokens_.take();
    tokens_.expect_end(TokenKind::block_end);
    return made;
  }

  Statement parse_for(Position at) {
    Statement made{.kind = Kind::for_loop, .at = at};
    tokens_.take();
    made.targets.push_back(parse_target(false));
    if (!tokens_.skip_name("in"))
      tokens_.fail_here("expected 'in'; got {}", TokenReader::describe(tokens_.peek()));
    made.expressions.push_back(expressions_.parse_tuple(false));
    made.expressions.push_back(tokens_.skip_name("if") ? expressions_.parse() : nullptr);
    if (tokens_.peek().is_name("recursive"))
      tokens_.refuse_at(tokens_.peek().at, "recursive loops are not supported in templates");
    tokens_.expect_end(TokenKind::block_end);
    ++loops_;
    made.blocks.push_back(parse_block({"else", "endfor"}));
    --loops_;
    if (tokens_.skip_name("else")) {
      tokens_.expect_end(TokenKind::block_end);
      made.blocks.push_back(parse_block({"endfor"}));
    }
    tokens_.take();
    tokens_.expect_end(TokenKind::block_end);
    return made;
  }

  Statement parse_set(Position at) {
    Statement made{.kind = Kind::set, .at = at};
    tokens_.take();
    made.targets.push_back(parse_target(true));
    if (tokens_.skip_op("=")) {
      made.expressions.push_back(expressions_.parse_tuple());
      tokens_.expect_end(TokenKind::block_end);
      return made;
    }
    made.kind = Kind::set_block;
    if (tokens_.peek().is_op("|"))
      made.expressions.push_back(expressions_.parse_filters(body_text(at)));
    made.blocks.push_back(parse_body("endset"));
    return made;
  }

  Statement parse_filter_block(Position at) {
    Statement made{.kind = Kind::filter_block, .at = at};
    tokens_.take();
    made.expressions.push_back(expressions_.parse_block_filters(body_text(at)));
    made.blocks.push_back(parse_body("endfilter"));
    return made;
  }

  /// What the filter of a block is applied to.
  static ExpressionPtr body_text(Position at) {
    auto body = std::make_unique<Expression>();
    body->kind = ExpressionKind::name;
    body->at = at;
    body->name = kBodyName;
    return body;
  }

  Statement parse_macro(Position at) {
    Statement made{.kind = Kind::macro, .at = at};
    tokens_.take();
    made.text = tokens_.expect_name();
    tokens_.expect_op("(");
    while (!tokens_.peek().is_op(")")) {
      std::string name = tokens_.expect_name();
      ExpressionPtr absent;
      if (tokens_.skip_op("=")) {
        absent = expressions_.parse();
      } else if (!made.parameters.empty() && made.parameters.back().second != nullptr) {
        tokens_.fail_here("a parameter without default follows one with a default");
      }
      made.parameters.emplace_back(std::move(name), std::move(absent));
      if (!tokens_.skip_op(",")) break;
    }
    tokens_.expect_op(")");
    made.blocks.push_back(parse_outside_loops("endmacro"));
    return made;
  }

  Statement parse_with(Position at) {
    Statement made{.kind = Kind::with, .at = at};
    tokens_.take();
    while (tokens_.peek().kind != TokenKind::block_end) {
      if (!made.targets.empty()) tokens_.expect_op(",");
      made.targets.push_back(parse_target(false));
      tokens_.expect_op("=");
      made.expressions.push_back(expressions_.parse());
    }
    made.blocks.push_back(parse_body("endwith"));
    return made;
  }

  Statement parse_generation(Position at) {
    Statement made{.kind = Kind::group, .at = at};
    tokens_.take();
    made.blocks.push_back(parse_outside_loops("endgeneration"));
    return made;
  }

  /// The body of a macro: `break` in it does not leave a loop around it.
  Block parse_outside_loops(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Block body = parse_body(end);
    loops_ = loops;
    return body;
  }

  Target parse_target(bool with_attributes) {
    Target first = parse_one_target(with_attributes);
    if (!tokens_.peek().is_op(",")) return first;
    Target tuple{.at = first.at};
    tuple.elements.push_back(std::move(first));
    while (tokens_.skip_op(",")) {
      if (tokens_.peek().kind != TokenKind::name && !tokens_.peek().is_op("(")) break;
      if (tokens_.peek().is_name("in")) break;
      tuple.elements.push_back(parse_one_target(with_attributes));
    }
    return tuple;
  }

  Target parse_one_target(bool with_attributes) {
    const TokenReader::Depth depth(tokens_);
    Target target{.at = tokens_.peek().at};
    if (tokens_.skip_op("(")) {
      target = parse_target(with_attributes);
      tokens_.expect_op(")");
      return target;
    }
    target.name = tokens_.expect_name();
    for (const char* constant : {"true", "false", "none", "True", "False", "None"})
      if (target.name == constant) tokens_.fail_here("'{}' cannot be assigned to", constant);
    if (with_attributes && tokens_.skip_op(".")) target.attribute = tokens_.expect_name();
    return target;
  }

  TokenReader tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

std::string TokenReader::describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::text:
      return "text";
    case TokenKind::print_begin:
      return "'{{'";
    case TokenKind::print_end:
      return "'}}'";
    case TokenKind::block_begin:
      return "'{%'";
    case TokenKind::block_end:
      return "'%}'";
    case TokenKind::string:
      return "a string";
    case TokenKind::end:
      return "the end of the template";
    default:
      return fmt::format("'{}'", token.text);
  }
}

Block parse(std::string_view source, const std::string& where) {
  return Parser(source, where).parse_template();
}

}  // namespace fovea::jinja
