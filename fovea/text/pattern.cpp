// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#define PCRE2_CODE_UNIT_WIDTH 8
#include "fovea/text/pattern.h"

#include <pcre2.h>

#include <algorithm>

#include "fovea/base/error.h"

namespace fovea {
namespace {

// What Unicode 15, 15.1 and 16 added to the categories that patterns name: Debian's PCRE2 knows
// Unicode 14.
constexpr std::string_view kNewLetters =
    R"(\x{1c89}-\x{1c8a}\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{105c0}-\x{105f3})"
    R"(\x{10d4a}-\x{10d65}\x{10d6f}-\x{10d85}\x{10ec2}-\x{10ec4}\x{1123f}-\x{11240})"
    R"(\x{11380}-\x{11389}\x{1138b}\x{1138e}\x{11390}-\x{113b5}\x{113b7}\x{113d1}\x{113d3})"
    R"(\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10}\x{11f12}-\x{11f33}\x{1342f})"
    R"(\x{13441}-\x{13446}\x{13460}-\x{143fa}\x{16100}-\x{1611d}\x{16d40}-\x{16d6c}\x{18cff})"
    R"(\x{1b132}\x{1b155}\x{1df25}-\x{1df2a}\x{1e030}-\x{1e06d}\x{1e4d0}-\x{1e4eb})"
    R"(\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
constexpr std::string_view kNewNumbers =
    R"(\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59})"
    R"(\x{16130}-\x{16139}\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1d2c0}-\x{1d2d3})"
    R"(\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})";
constexpr std::string_view kNewMarks =
    R"(\x{897}\x{cf3}\x{ece}\x{10d69}-\x{10d6d}\x{10efc}-\x{10eff}\x{11241}\x{113b8}-\x{113c0})"
    R"(\x{113c2}\x{113c5}\x{113c7}-\x{113ca}\x{113cc}-\x{113d0}\x{113d2}\x{113e1}-\x{113e2})"
    R"(\x{11f00}-\x{11f01}\x{11f03}\x{11f34}-\x{11f3a}\x{11f3e}-\x{11f42}\x{11f5a}\x{13440})"
    R"(\x{13447}-\x{13455}\x{1611e}-\x{1612f}\x{1e08f}\x{1e4ec}-\x{1e4ef}\x{1e5ee}-\x{1e5ef})";
// White_Space; PCRE2's \s has U+180E too.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

/// The class items of a name like \p{L}, "" for every other escape.
std::string class_items(std::string_view escape) {
  if (escape == "\\p{L}") return fmt::format("{}{}", escape, kNewLetters);
  if (escape == "\\p{N}") return fmt::format("{}{}", escape, kNewNumbers);
  if (escape == "\\p{M}") return fmt::format("{}{}", escape, kNewMarks);
  if (escape == "\\s") return std::string(kSpaces);
  return "";
}

/// The pattern with the categories of Unicode 16.
std::string with_unicode_16(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size();) {
    size_t size = 1;
    if (pattern[i] == '\\' && i + 1 < pattern.size()) {
      size = 2;
      const bool named = pattern[i + 1] == 'p' || pattern[i + 1] == 'P';
      if (named && i + 2 < pattern.size() && pattern[i + 2] == '{') {
        size = std::min(pattern.find('}', i), pattern.size() - 1) - i + 1;
      }
      const std::string_view escape = pattern.substr(i, size);
      const std::string items = class_items(escape);
      if (!items.empty()) {
        out += in_class ? items : "[" + items + "]";
      } else if (escape == "\\S" && !in_class) {
        out += fmt::format("[^{}]", kSpaces);
      } else {
        out += escape;
      }
    } else {
      if (pattern[i] == '[') in_class = true;
      if (pattern[i] == ']') in_class = false;
      out += pattern[i];
    }
    i += size;
  }
  return out;
}

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

const pcre2_code* code_of(const std::shared_ptr<const void>& code) {
  return static_cast<const pcre2_code*>(code.get());
}

}  // namespace

Pattern::Pattern(std::string_view text) {
  const std::string pattern = with_unicode_16(text);
  int error = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &place, nullptr);
  require<InputError>(code != nullptr, "tokenizer", "the pattern '{}' cannot be used: {}", text,
                      message_of(error));
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is no JIT, matching is only slower
  code_ = std::shared_ptr<const void>(
      code, [](const void* c) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(c))); });
}

Pattern::Search::Search(const Pattern& pattern, std::string_view text)
    : code_(pattern.code_),
      data_(pcre2_match_data_create_from_pattern(code_of(code_), nullptr),
            [](void* data) { pcre2_match_data_free(static_cast<pcre2_match_data*>(data)); }),
      text_(text) {}

std::optional<Pattern::Match> Pattern::Search::next() {
  if (from_ >= text_.size()) return std::nullopt;
  auto* data = static_cast<pcre2_match_data*>(data_.get());
  found_ = pcre2_match(code_of(code_), reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(),
                       from_, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data, nullptr);
  if (found_ == PCRE2_ERROR_NOMATCH) return std::nullopt;
  require<InputError>(found_ >= 0, "tokenizer", "the pattern fails on this text: {}",
                      message_of(found_));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
  from_ = ends[1];
  return Match{ends[0], ends[1]};
}

std::vector<std::optional<Pattern::Match>> Pattern::Search::groups() const {
  const auto* data = static_cast<const pcre2_match_data*>(data_.get());
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(const_cast<pcre2_match_data*>(data));
  std::vector<std::optional<Match>> groups;
  const auto all = static_cast<int>(pcre2_get_ovector_count(const_cast<pcre2_match_data*>(data)));
  for (int n = 1; n < all; ++n) {
    const bool took_part = n < found_ && ends[2 * n] != PCRE2_UNSET;
    groups.push_back(took_part ? std::optional(Match{ends[2 * n], ends[2 * n + 1]}) : std::nullopt);
  }
  return groups;
}

std::string quoted_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const bool plain = static_cast<unsigned char>(c) >= 0x80 || c == ' ' ||
                       (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    pattern += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return pattern;
}

}  // namespace fovea
