// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>

namespace fovea::jinja {
namespace {

using Kind = ExpressionKind;

// Trees are walked by recursion: a chain like a + b + c is as high as it is long.
constexpr int kHighestTree = 200;
// map('map', 'map', ...) calls itself once an argument.
constexpr size_t kMostArguments = 64;

bool is_comparison(const Token& token) {
  constexpr std::string_view kComparisons[] = {"==", "!=", "<", "<=", ">", ">="};
  return token.kind == TokenKind::op &&
         std::ranges::find(kComparisons, token.text) != std::end(kComparisons);
}

}  // namespace

ExpressionPtr ExpressionParser::measured(ExpressionPtr made) {
  int highest = 0;
  for (const ExpressionPtr& part : made->parts)
    if (part != nullptr) highest = std::max(highest, part->height);
  for (const auto& [name, part] : made->named) highest = std::max(highest, part->height);
  made->height = highest + 1;
  if (made->height > kHighestTree)
    tokens_.fail_here("the expression has more than {} operations in a chain", kHighestTree);
  return made;
}

ExpressionPtr ExpressionParser::make(ExpressionKind kind, Position at,
                                     std::vector<ExpressionPtr> parts, std::string name) {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->at = at;
  made->name = std::move(name);
  made->parts = std::move(parts);
  return measured(std::move(made));
}

template <class... Parts>
ExpressionPtr ExpressionParser::node(ExpressionKind kind, Position at, std::string name,
                                     Parts... parts) {
  std::vector<ExpressionPtr> list;
  (list.push_back(std::move(parts)), ...);
  return make(kind, at, std::move(list), std::move(name));
}

ExpressionPtr ExpressionParser::parse() {
  const TokenReader::Depth depth(tokens_);
  const Position at = tokens_.peek().at;
  ExpressionPtr value = parse_or();
  while (tokens_.skip_name("if")) {
    ExpressionPtr condition = parse_or(), other;
    if (tokens_.skip_name("else")) other = parse();
    value =
        node(Kind::conditional, at, "", std::move(condition), std::move(value), std::move(other));
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_unconditional() { return parse_or(); }

bool ExpressionParser::at_tuple_end() const {
  const Token& token = tokens_.peek();
  return token.kind == TokenKind::print_end || token.kind == TokenKind::block_end ||
         token.kind == TokenKind::end || token.is_op(")") || token.is_name("recursive");
}

ExpressionPtr ExpressionParser::parse_tuple(bool conditional) {
  const Position at = tokens_.peek().at;
  std::vector<ExpressionPtr> elements;
  bool tuple = false;
  while (!at_tuple_end()) {
    elements.push_back(conditional ? parse() : parse_unconditional());
    if (!tokens_.skip_op(",")) break;
    tuple = true;
  }
  if (tuple) return make(Kind::tuple, at, std::move(elements));
  if (elements.empty())
    tokens_.fail_here("expected an expression; got {}", TokenReader::describe(tokens_.peek()));
  return std::move(elements[0]);
}

ExpressionPtr ExpressionParser::parse_or() {
  const Position at = tokens_.peek().at;
  ExpressionPtr left = parse_and();
  while (tokens_.skip_name("or"))
    left = node(Kind::logical_or, at, "", std::move(left), parse_and());
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  const Position at = tokens_.peek().at;
  ExpressionPtr left = parse_not();
  while (tokens_.skip_name("and"))
    left = node(Kind::logical_and, at, "", std::move(left), parse_not());
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  const TokenReader::Depth depth(tokens_);
  const Position at = tokens_.peek().at;
  if (tokens_.skip_name("not")) return node(Kind::logical_not, at, "", parse_not());
  return parse_compare();
}

ExpressionPtr ExpressionParser::parse_compare() {
  const Position at = tokens_.peek().at;
  std::vector<ExpressionPtr> operands;
  std::vector<std::string> operators;
  for (;;) {
    operands.push_back(parse_sum());
    if (is_comparison(tokens_.peek())) {
      operators.push_back(tokens_.take().text);
    } else if (tokens_.skip_name("in")) {
      operators.emplace_back("in");
    } else if (tokens_.peek().is_name("not") && tokens_.peek(1).is_name("in")) {
      tokens_.take();
      tokens_.take();
      operators.emplace_back("not in");
    } else {
      break;
    }
  }
  if (operators.empty()) return std::move(operands[0]);
  ExpressionPtr made = make(Kind::compare, at, std::move(operands));
  made->operators = std::move(operators);
  return made;
}

ExpressionPtr ExpressionParser::parse_sum() {
  const Position at = tokens_.peek().at;
  ExpressionPtr left = parse_concatenate();
  while (tokens_.peek().is_op("+") || tokens_.peek().is_op("-")) {
    std::string op = tokens_.take().text;
    left = node(Kind::arithmetic, at, std::move(op), std::move(left), parse_concatenate());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concatenate() {
  const Position at = tokens_.peek().at;
  std::vector<ExpressionPtr> parts;
  do {
    parts.push_back(parse_product());
  } while (tokens_.skip_op("~"));
  if (parts.size() == 1) return std::move(parts[0]);
  return make(Kind::concatenate, at, std::move(parts));
}

ExpressionPtr ExpressionParser::parse_product() {
  const Position at = tokens_.peek().at;
  ExpressionPtr left = parse_power();
  while (tokens_.peek().is_op("*") || tokens_.peek().is_op("/") || tokens_.peek().is_op("//") ||
         tokens_.peek().is_op("%")) {
    std::string op = tokens_.take().text;
    left = node(Kind::arithmetic, at, std::move(op), std::move(left), parse_power());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_power() {
  const Position at = tokens_.peek().at;
  ExpressionPtr left = parse_unary();
  while (tokens_.skip_op("**"))  // from the left, unlike Python
    left = node(Kind::arithmetic, at, "**", std::move(left), parse_unary());
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  const TokenReader::Depth depth(tokens_);
  const Position at = tokens_.peek().at;
  ExpressionPtr value;
  if (tokens_.skip_op("-")) {
    value = node(Kind::negative, at, "", parse_unary(false));
  } else if (tokens_.skip_op("+")) {
    value = node(Kind::positive, at, "", parse_unary(false));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token token = tokens_.take();
  switch (token.kind) {
    case TokenKind::name:
      return parse_name(token);
    case TokenKind::string: {
      ExpressionPtr made = make(Kind::constant, token.at, {});
      std::string text = token.text;
      while (tokens_.peek().kind == TokenKind::string) text += tokens_.take().text;
      made->constant = Value(std::move(text));
      return made;
    }
    case TokenKind::integer:
    case TokenKind::floating:
      return parse_number(token);
    default:
      break;
  }
  if (token.is_op("[")) return parse_list(token.at);
  if (token.is_op("{")) return parse_dict(token.at);
  if (!token.is_op("("))
    tokens_.fail_at(token.at, "expected an expression; got {}", TokenReader::describe(token));
  if (tokens_.skip_op(")")) return make(Kind::tuple, token.at, {});
  ExpressionPtr inner = parse_tuple();
  tokens_.expect_op(")");
  return inner;
}

ExpressionPtr ExpressionParser::parse_number(const Token& token) {
  ExpressionPtr made = make(Kind::constant, token.at, {});
  const char *begin = token.text.data(), *end = begin + token.text.size();
  bool good = false;
  if (token.kind == TokenKind::floating) {
    double number = 0;
    good = std::from_chars(begin, end, number).ec == std::errc();
    made->constant = number;
  } else {
    const char base = token.text.size() > 1 ? static_cast<char>(token.text[1] | 32) : ' ';
    const int radix = base == 'x' ? 16 : base == 'o' ? 8 : base == 'b' ? 2 : 10;
    int64_t number = 0;
    const auto read = std::from_chars(begin + (radix == 10 ? 0 : 2), end, number, radix);
    good = read.ec == std::errc() && read.ptr == end;
    made->constant = number;
  }
  if (!good) tokens_.refuse_at(token.at, "the number {} is too large", token.text);
  return made;
}

ExpressionPtr ExpressionParser::parse_name(const Token& token) {
  ExpressionPtr made = make(Kind::constant, token.at, {});
  if (token.text == "true" || token.text == "True") {
    made->constant = true;
  } else if (token.text == "false" || token.text == "False") {
    made->constant = false;
  } else if (token.text == "none" || token.text == "None") {
    made->constant = None{};
  } else {
    constexpr std::string_view kRefused[] = {"cycler", "joiner",  "lipsum", "self",
                                             "caller", "varargs", "kwargs"};
    if (std::ranges::find(kRefused, token.text) != std::end(kRefused))
      tokens_.refuse_at(token.at, "'{}' is not supported in templates", token.text);
    made->kind = Kind::name;
    made->name = token.text;
  }
  return made;
}

ExpressionPtr ExpressionParser::parse_list(Position at) {
  std::vector<ExpressionPtr> elements;
  while (!tokens_.peek().is_op("]")) {
    elements.push_back(parse());
    if (!tokens_.skip_op(",")) break;
  }
  tokens_.expect_op("]");
  return make(Kind::list, at, std::move(elements));
}

ExpressionPtr ExpressionParser::parse_dict(Position at) {
  std::vector<ExpressionPtr> entries;
  while (!tokens_.peek().is_op("}")) {
    entries.push_back(parse());
    tokens_.expect_op(":");
    entries.push_back(parse());
    if (!tokens_.skip_op(",")) break;
  }
  tokens_.expect_op("}");
  return make(Kind::dict, at, std::move(entries));
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr object) {
  for (;;) {
    const Position at = tokens_.peek().at;
    if (tokens_.skip_op(".")) {
      const Token name = tokens_.take();
      if (name.kind == TokenKind::integer) {
        object = node(Kind::item, at, "", std::move(object), parse_number(name));
      } else if (name.kind == TokenKind::name) {
        object = node(Kind::attribute, at, name.text, std::move(object));
      } else {
        tokens_.fail_at(name.at, "expected a name after '.'; got {}", TokenReader::describe(name));
      }
    } else if (tokens_.skip_op("[")) {
      object = parse_subscript(std::move(object), at);
    } else if (tokens_.peek().is_op("(")) {
      object = node(Kind::call, at, "", std::move(object));
      parse_arguments(*object);
      object = measured(std::move(object));
    } else {
      return object;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr object, Position at) {
  ExpressionPtr bounds[3];
  size_t colons = 0;
  for (; colons < 3; ++colons) {
    if (!tokens_.peek().is_op(":") && !tokens_.peek().is_op("]")) bounds[colons] = parse();
    if (colons == 2 || !tokens_.skip_op(":")) break;
  }
  if (tokens_.peek().is_op(",")) tokens_.refuse_at(at, "subscripts with commas are not supported");
  tokens_.expect_op("]");
  if (colons > 0) {
    return node(Kind::slice, at, "", std::move(object), std::move(bounds[0]), std::move(bounds[1]),
                std::move(bounds[2]));
  }
  if (bounds[0] == nullptr) tokens_.fail_here("expected a subscript between the brackets");
  return node(Kind::item, at, "", std::move(object), std::move(bounds[0]));
}

void ExpressionParser::parse_arguments(Expression& call) {
  tokens_.expect_op("(");
  while (!tokens_.peek().is_op(")")) {
    const Token& token = tokens_.peek();
    if (token.is_op("*") || token.is_op("**"))
      tokens_.refuse_at(token.at, "arguments with '{}' are not supported", token.text);
    if (token.kind == TokenKind::name && tokens_.peek(1).is_op("=")) {
      std::string name = tokens_.take().text;
      tokens_.take();
      call.named.emplace_back(std::move(name), parse());
    } else {
      if (!call.named.empty()) tokens_.fail_here("arguments by name must be the last ones");
      call.parts.push_back(parse());
    }
    if (call.parts.size() + call.named.size() > kMostArguments)
      tokens_.fail_here("a call has more than {} arguments", kMostArguments);
    if (!tokens_.skip_op(",")) break;
  }
  tokens_.expect_op(")");
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr input) {
  for (;;) {
    const Position at = tokens_.peek().at;
    if (tokens_.skip_op("|")) {
      input = parse_filter(std::move(input));
    } else if (tokens_.skip_name("is")) {
      input = parse_test(std::move(input));
    } else if (tokens_.peek().is_op("(")) {
      input = node(Kind::call, at, "", std::move(input));
      parse_arguments(*input);
      input = measured(std::move(input));
    } else {
      return input;
    }
  }
}

ExpressionPtr ExpressionParser::parse_block_filters(ExpressionPtr input) {
  do {
    input = parse_filter(std::move(input));
  } while (tokens_.skip_op("|"));
  return input;
}

void ExpressionParser::require_support(Support support, Position at, std::string_view kind,
                                       const std::string& name) const {
  if (support == Support::supported || branches_ > 0) return;
  if (support == Support::refused)
    tokens_.refuse_at(at, "the {} '{}' is not supported", kind, name);
  tokens_.fail_at(at, "there is no {} '{}'", kind, name);
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr input) {
  const Position at = tokens_.peek().at;
  std::string name = tokens_.expect_name();
  require_support(filter_support(name), at, "filter", name);
  ExpressionPtr made = node(Kind::filter, at, std::move(name), std::move(input));
  if (tokens_.peek().is_op("(")) parse_arguments(*made);
  return measured(std::move(made));
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr input) {
  const bool negated = tokens_.skip_name("not");
  const Position at = tokens_.peek().at;
  std::string name = tokens_.expect_name();
  require_support(test_support(name), at, "test", name);
  ExpressionPtr made = node(Kind::test, at, std::move(name), std::move(input));
  const Token& next = tokens_.peek();
  const bool word = next.kind == TokenKind::name && next.text != "else" && next.text != "or" &&
                    next.text != "and";
  if (next.is_op("(")) {
    parse_arguments(*made);
  } else if (word || next.kind == TokenKind::string || next.kind == TokenKind::integer ||
             next.kind == TokenKind::floating || next.is_op("[") || next.is_op("{")) {
    if (next.is_name("is")) tokens_.fail_here("tests with 'is' cannot be chained");
    const TokenReader::Depth depth(tokens_);
    made->parts.push_back(parse_postfix(parse_primary()));
  }
  made = measured(std::move(made));
  return negated ? node(Kind::logical_not, at, "", std::move(made)) : std::move(made);
}

}  // namespace fovea::jinja
