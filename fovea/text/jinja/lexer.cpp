// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/jinja/lexer.h"

#include <algorithm>
#include <charconv>

#include "fovea/base/error.h"
#include "fovea/base/printable.h"
#include "fovea/text/jinja/python_text.h"

namespace fovea::jinja {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view rest_of(std::string_view text, size_t at) {
  return text.substr(std::min(at, text.size()));
}

/// Lines end with \n, and one newline at the end is dropped.
std::string normalized(std::string_view source) {
  std::string out = replace(replace(source, "\r\n", "\n"), "\r", "\n");
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, const std::string& where)
      : source_(std::move(source)), rest_(source_), where_(where) {}

  std::vector<Token> run() {
    while (!rest_.empty()) read_text();
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail_at(Position at, std::string_view message) const {
    fail<InputError>(place(where_, at), "{}", message);
  }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), at_}); }
  void add_text(std::string_view text) {
    if (!text.empty()) add(TokenKind::text, std::string(text));
  }

  /// Moves on by `size` bytes and counts lines and columns.
  void skip(size_t size) {
    const std::string_view passed = rest_.substr(0, size);
    rest_.remove_prefix(size);
    const size_t newline = passed.rfind('\n');
    if (newline == std::string_view::npos) {
      at_.column += static_cast<int>(count_characters(passed));
    } else {
      at_.line += static_cast<int>(std::ranges::count(passed, '\n'));
      at_.column = 1 + static_cast<int>(count_characters(passed.substr(newline + 1)));
    }
    if (!passed.empty()) at_line_start_ = passed.back() == '\n';
  }
  void skip_spaces() { skip(rest_.size() - strip(rest_, Side::left).size()); }

  /// `text` before a tag, without the white space that the tag takes: all with the sign '-'; the
  /// indentation of a line where `indentation` is set.
  std::string_view before_tag(std::string_view text, char sign, bool indentation) const {
    if (sign == '-') return strip(text, Side::right);
    if (sign == '+' || !indentation) return text;
    const size_t line = text.rfind('\n') + 1;  // 0 where there is none
    if (line == 0 && !at_line_start_) return text;
    return is_space(text.substr(line)) ? text.substr(0, line) : text;
  }

  /// '-' or '+' at `at`, else 0.
  char sign_at(size_t at) const {
    const std::string_view sign = rest_of(rest_, at).substr(0, 1);
    return sign == "-" || sign == "+" ? sign[0] : '\0';
  }

  void read_text() {
    size_t tag = 0;
    for (;; ++tag) {
      tag = rest_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= rest_.size()) {
        add_text(rest_);
        skip(rest_.size());
        return;
      }
      if (std::string_view("{%#").find(rest_[tag + 1]) != std::string_view::npos) break;
    }
    const char kind = rest_[tag + 1], sign = sign_at(tag + 2);
    add_text(before_tag(rest_.substr(0, tag), sign, kind != '{'));
    skip(tag);
    const Position begin = at_;
    const size_t head = sign == '\0' ? 2 : 3;
    if (kind == '#') {
      skip(head);
      read_comment(begin);
    } else if (const size_t raw = kind == '%' ? raw_head(head) : 0; raw > 0) {
      skip(raw);
      read_raw(begin);
    } else {
      add(kind == '{' ? TokenKind::print_begin : TokenKind::block_begin, "");
      skip(head);
      read_tag(kind == '{', begin);
    }
  }

  /// Skips "-%}" with the white space behind it, "%}" with one newline, or "+%}"; `closing` is
  /// what stands for "%}". False where none of them is here.
  bool skip_end(std::string_view closing) {
    const char sign = sign_at(0);
    const size_t head = sign == '\0' ? 0 : 1;
    if (!rest_.substr(head).starts_with(closing)) return false;
    if (closing == "}}" && sign == '+') return false;
    skip(head + closing.size());
    if (sign == '-') {
      skip_spaces();
    } else if (sign == '\0' && closing != "}}" && rest_.starts_with('\n')) {
      skip(1);
    }
    return true;
  }

  void read_comment(Position begin) {
    const size_t end = rest_.find("#}");
    if (end == std::string_view::npos) fail_at(begin, "the comment has no end #}");
    skip(end > 0 && sign_at(end - 1) != '\0' ? end - 1 : end);
    skip_end("#}");
  }

  /// Bytes of "{% raw %}" with the white space that it takes, or 0.
  size_t raw_head(size_t head) const {
    std::string_view rest = strip(rest_.substr(head), Side::left);
    if (!rest.starts_with("raw")) return 0;
    rest = strip(rest.substr(3), Side::left);
    if (rest.starts_with("-%}")) return rest_.size() - strip(rest.substr(3), Side::left).size();
    return rest.starts_with("%}") ? rest_.size() - rest.size() + 2 : 0;
  }

  void read_raw(Position begin) {
    for (size_t tag = rest_.find("{%"); tag != std::string_view::npos;
         tag = rest_.find("{%", tag + 1)) {
      const char sign = sign_at(tag + 2);
      std::string_view rest = rest_.substr(tag + (sign == '\0' ? 2 : 3));
      rest = strip(rest, Side::left);
      if (!rest.starts_with("endraw")) continue;
      rest = strip(rest.substr(6), Side::left);
      const std::string_view closing = rest.substr(0, rest.find("%}"));
      if (closing != "" && closing != "-" && closing != "+") continue;
      add_text(before_tag(rest_.substr(0, tag), sign, true));
      skip(rest_.size() - rest.size());
      skip_end("%}");
      return;
    }
    fail_at(begin, "the raw block has no end {% endraw %}");
  }

  void read_tag(bool print, Position begin) {
    const std::string_view closing = print ? "}}" : "%}";
    for (;;) {
      skip_spaces();
      if (rest_.empty()) fail_at(begin, fmt::format("the tag has no end {}", closing));
      if (brackets_.empty()) {
        const Position at = at_;
        if (skip_end(closing)) {
          tokens_.push_back({print ? TokenKind::print_end : TokenKind::block_end, "", at});
          return;
        }
      }
      read_token();
    }
  }

  void read_token() {
    const char c = rest_[0];
    if (is_digit(c)) return read_number();
    if (c == '\'' || c == '"') return read_string();
    if (!is_letter(c)) return read_operator();
    const auto* end =
        std::ranges::find_if_not(rest_, [](char l) { return is_letter(l) || is_digit(l); });
    const auto size = static_cast<size_t>(end - rest_.begin());
    add(TokenKind::name, std::string(rest_.substr(0, size)));
    skip(size);
  }

  /// Bytes of digits from `at` on, with underscores between them.
  size_t digits(size_t at, std::string_view allowed = "0123456789") const {
    size_t end = at;
    while (end < rest_.size() && (allowed.find(rest_[end]) != std::string_view::npos ||
                                  (rest_[end] == '_' && end > at && end + 1 < rest_.size() &&
                                   allowed.find(rest_[end + 1]) != std::string_view::npos))) {
      ++end;
    }
    return end - at;
  }

  void read_number() {
    size_t size = 0;
    TokenKind kind = TokenKind::integer;
    const char base = rest_.size() > 1 && rest_[0] == '0' ? static_cast<char>(rest_[1] | 32) : ' ';
    if (base == 'x' || base == 'o' || base == 'b') {
      size = 2 + digits(2, base == 'x'   ? "0123456789abcdefABCDEF"
                           : base == 'o' ? "01234567"
                                         : "01");
    } else {
      size = digits(0);
      // The elements of "x.0.1" are two integers.
      const bool after_dot = !tokens_.empty() && tokens_.back().is_op(".");
      const bool dot = !after_dot && rest_of(rest_, size).starts_with('.');
      const size_t fraction = dot ? digits(size + 1) : 0;
      size_t end = fraction > 0 ? size + 1 + fraction : size;
      if (end < rest_.size() && (rest_[end] | 32) == 'e') {
        const size_t power = end + (sign_at(end + 1) == '\0' ? 1 : 2);
        if (digits(power) > 0) end = power + digits(power);
      }
      if (end > size) kind = TokenKind::floating;
      size = end;
    }
    std::string text(rest_.substr(0, size));
    std::erase(text, '_');
    add(kind, std::move(text));
    skip(size);
  }

  void read_operator() {
    constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                               "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                               ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto* found = std::ranges::find_if(
        kOperators, [&](std::string_view op) { return rest_.starts_with(op); });
    if (found == std::end(kOperators)) {
      fail_at(at_, fmt::format("unexpected character '{}'",
                               printable_line(rest_.substr(0, character_size(rest_)))));
    }
    constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (const size_t open = kOpen.find((*found)[0]); open != std::string_view::npos)
      brackets_ += kClose[open];
    if (kClose.find((*found)[0]) != std::string_view::npos) {
      if (brackets_.empty()) fail_at(at_, fmt::format("unexpected '{}'", *found));
      if (brackets_.back() != (*found)[0]) {
        fail_at(at_, fmt::format("unexpected '{}', expected '{}'", *found, brackets_.back()));
      }
      brackets_.pop_back();
    }
    add(TokenKind::op, std::string(*found));
    skip(found->size());
  }

  void read_string() {
    const char quote = rest_[0];
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) fail_at(at_, "the string has no end");
    add(TokenKind::string, unescaped(rest_.substr(1, end - 1)));
    skip(end + 1);
  }

  std::string unescaped(std::string_view text) const {
    constexpr std::string_view kNames = "\n\\'\"abfnrtv";
    constexpr std::string_view kMeanings("\0\\'\"\a\b\f\n\r\t\v", 11);
    std::string out;
    while (!text.empty()) {
      const size_t slash = std::min(text.find('\\'), text.size());
      out += text.substr(0, slash);
      text.remove_prefix(slash);
      if (text.empty()) break;
      const char name = text[1];
      text.remove_prefix(2);
      if (const size_t known = kNames.find(name); known != std::string_view::npos) {
        if (name != '\n') out += kMeanings[known];
      } else if (name >= '0' && name <= '7') {
        append_code(std::string(1, name) + take_digits(text, 2, "01234567"), 8, out);
      } else if (name == 'x' || name == 'u' || name == 'U') {
        const size_t size = name == 'x' ? 2 : name == 'u' ? 4 : 8;
        const std::string code = take_digits(text, size, "0123456789abcdefABCDEF");
        if (code.size() < size) fail_at(at_, fmt::format("the escape \\{} is cut short", name));
        append_code(code, 16, out);
      } else if (name == 'N') {
        fail<UnsupportedError>(place(where_, at_), "the escape \\N is not supported");
      } else {
        out += '\\';
        out += name;
      }
    }
    return out;
  }

  static std::string take_digits(std::string_view& text, size_t most, std::string_view allowed) {
    const size_t size =
        std::min(text.substr(0, most).find_first_not_of(allowed), std::min(most, text.size()));
    std::string found(text.substr(0, size));
    text.remove_prefix(size);
    return found;
  }

  void append_code(const std::string& digits, int base, std::string& out) const {
    uint32_t code = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail_at(at_, fmt::format("the escape of U+{:04X} in a string is no character", code));
    }
    append_utf8(code, out);
  }

  std::string source_;
  std::string_view rest_;
  const std::string& where_;
  std::vector<Token> tokens_;
  Position at_;
  std::string brackets_;  // the closing ones that are still to come
  bool at_line_start_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& where) {
  return Lexer(normalized(source), where).run();
}

std::string place(const std::string& where, Position at) {
  return fmt::format("{}, line {}, column {}", where, at.line, at.column);
}

}  // namespace fovea::jinja
