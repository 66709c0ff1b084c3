// Reads the tokens of a template one after the other.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/text/jinja/lexer.h"

namespace fovea::jinja {

class TokenReader {
 public:
  TokenReader(std::vector<Token> tokens, std::string where)
      : tokens_(std::move(tokens)), where_(std::move(where)) {}

  /// The current token; the last one is of kind `end` and is never passed.
  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(next_ + ahead, tokens_.size() - 1)];
  }
  Token take() {
    Token token = peek();
    if (next_ + 1 < tokens_.size()) ++next_;
    return token;
  }
  bool skip_op(std::string_view op) { return skip_if(peek().is_op(op)); }
  bool skip_name(std::string_view name) { return skip_if(peek().is_name(name)); }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) fail_here("expected '{}'; got {}", op, describe(peek()));
  }
  std::string expect_name() {
    if (peek().kind != TokenKind::name) fail_here("expected a name; got {}", describe(peek()));
    return take().text;
  }
  void expect_end(TokenKind kind) {
    if (peek().kind != kind) {
      fail_here("expected {}; got {}", kind == TokenKind::block_end ? "'%}'" : "'}}'",
                describe(peek()));
    }
    take();
  }

  template <class... Args>
  [[noreturn]] void fail_here(fmt::format_string<Args...> message, Args&&... args) const {
    fail_at(peek().at, message, std::forward<Args>(args)...);
  }
  template <class... Args>
  [[noreturn]] void fail_at(Position at, fmt::format_string<Args...> message,
                            Args&&... args) const {
    fail<InputError>(place(where_, at), "{}", fmt::format(message, std::forward<Args>(args)...));
  }
  template <class... Args>
  [[noreturn]] void refuse_at(Position at, fmt::format_string<Args...> message,
                              Args&&... args) const {
    fail<UnsupportedError>(place(where_, at), "{}",
                           fmt::format(message, std::forward<Args>(args)...));
  }
  static std::string describe(const Token& token);

  /// Counts how deep the rules of the grammar nest; an error beyond kDeepestSyntax.
  class Depth {
   public:
    explicit Depth(TokenReader& reader) : reader_(reader) {
      if (++reader_.depth_ > kDeepestSyntax) {
        reader_.fail_here("the template nests deeper than {}", kDeepestSyntax);
      }
    }
    ~Depth() { --reader_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    TokenReader& reader_;
  };
  static constexpr int kDeepestSyntax = 300;

 private:
  bool skip_if(bool matches) {
    if (matches) take();
    return matches;
  }

  std::vector<Token> tokens_;
  std::string where_;
  size_t next_ = 0;
  int depth_ = 0;
};

}  // namespace fovea::jinja
