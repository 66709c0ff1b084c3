// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/jinja/python_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "fovea/text/utf8.h"

namespace fovea::jinja {
namespace {

constexpr char32_t kInvalid = 0xFFFFFFFF;

/// The code point at the start of `text`, kInvalid where it is no character.
char32_t code_at(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return first;
  const Utf8Step step = utf8_step(text);
  if (step.kind != Utf8Step::Kind::character) return kInvalid;
  char32_t code = first & (0x7Fu >> step.size);
  for (size_t i = 1; i < step.size; ++i)
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  return code;
}

bool is_space_code(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

/// Start of the last character of `text`.
size_t last_character(std::string_view text) {
  const size_t lowest = text.size() > 4 ? text.size() - 4 : 0;
  for (size_t start = text.size() - 1; start + 1 > lowest; --start) {
    if ((static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) continue;
    return start + character_size(text.substr(start)) == text.size() ? start : text.size() - 1;
  }
  return text.size() - 1;
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}
bool is_cased(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL ||
         kind == UTF8PROC_CATEGORY_LT;
}

enum class Case { upper, lower, title };

void append_case(std::string_view character, Case wanted, std::string& out) {
  const char32_t c = code_at(character);
  if (c == 0xDF && wanted != Case::lower) {
    out += wanted == Case::upper ? "SS" : "Ss";
    return;
  }
  if (c == kInvalid) {
    out += character;
    return;
  }
  const auto code = static_cast<utf8proc_int32_t>(c);
  const utf8proc_int32_t mapped = wanted == Case::upper   ? utf8proc_toupper(code)
                                  : wanted == Case::lower ? utf8proc_tolower(code)
                                                          : utf8proc_totitle(code);
  append_utf8(static_cast<char32_t>(mapped), out);
}

std::string map_case(std::string_view text, Case wanted) {
  std::string out;
  out.reserve(text.size());
  for (const std::string_view character : characters_of(text)) append_case(character, wanted, out);
  return out;
}

/// Whether Python's repr() writes the character as it is.
bool is_printable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

bool all_cased_are(std::string_view text, utf8proc_category_t wanted) {
  bool any = false;
  for (const std::string_view character : characters_of(text)) {
    const char32_t c = code_at(character);
    if (c == kInvalid || !is_cased(c)) continue;
    if (category(c) != wanted) return false;
    any = true;
  }
  return any;
}

std::vector<std::string_view> split_blanks(std::string_view text, const SplitOptions& options) {
  std::vector<std::string_view> parts;
  const Side side = options.from_right ? Side::right : Side::left;
  for (text = strip(text, side); !text.empty(); text = strip(text, side)) {
    if (options.most >= 0 && static_cast<int64_t>(parts.size()) == options.most) {
      parts.push_back(strip(text, options.from_right ? Side::left : Side::right));
      if (parts.back().empty()) parts.pop_back();
      break;
    }
    size_t size = 0;
    if (options.from_right) {
      size_t start = text.size();
      while (start > 0) {
        const size_t before = last_character(text.substr(0, start));
        if (starts_with_space(text.substr(before))) break;
        start = before;
      }
      parts.push_back(text.substr(start));
      text = text.substr(0, start);
      continue;
    }
    while (size < text.size() && !starts_with_space(text.substr(size)))
      size += character_size(text.substr(size));
    parts.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  if (options.from_right) std::ranges::reverse(parts);
  return parts;
}

}  // namespace

size_t character_size(std::string_view text) {
  return static_cast<unsigned char>(text[0]) < 0x80 ? 1 : utf8_step(text).size;
}

int64_t count_characters(std::string_view text) {
  int64_t count = 0;
  for (; !text.empty(); text.remove_prefix(character_size(text))) ++count;
  return count;
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  characters.reserve(text.size());
  while (!text.empty()) {
    characters.push_back(text.substr(0, character_size(text)));
    text.remove_prefix(characters.back().size());
  }
  return characters;
}

void append_utf8(char32_t code, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

bool starts_with_space(std::string_view text) {
  return !text.empty() && is_space_code(code_at(text));
}

bool is_space(std::string_view text) { return !text.empty() && strip(text, Side::left).empty(); }

std::string_view strip(std::string_view text, Side side,
                       std::optional<std::string_view> characters) {
  std::vector<std::string_view> unwanted;
  if (characters) unwanted = characters_of(*characters);
  const auto goes = [&](std::string_view character) {
    return characters ? std::ranges::find(unwanted, character) != unwanted.end()
                      : starts_with_space(character);
  };
  while (side != Side::right && !text.empty()) {
    const size_t size = character_size(text);
    if (!goes(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (side != Side::left && !text.empty()) {
    const size_t start = last_character(text);
    if (!goes(text.substr(start))) break;
    text = text.substr(0, start);
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, const SplitOptions& options) {
  if (!options.separator) return split_blanks(text, options);
  const std::string_view separator = *options.separator;
  std::vector<std::string_view> parts;
  while (options.most < 0 || static_cast<int64_t>(parts.size()) < options.most) {
    const size_t found = options.from_right ? text.rfind(separator) : text.find(separator);
    if (found == std::string_view::npos) break;
    if (options.from_right) {
      parts.push_back(text.substr(found + separator.size()));
      text = text.substr(0, found);
    } else {
      parts.push_back(text.substr(0, found));
      text.remove_prefix(found + separator.size());
    }
  }
  parts.push_back(text);
  if (options.from_right) std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    size_t size = character_size(text.substr(at));
    const char32_t c = code_at(text.substr(at));
    const bool ends =
        (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (c == '\r' && text.substr(at + 1).starts_with('\n')) size = 2;
    at += size;
    if (!ends) continue;
    lines.push_back(text.substr(start, at - start - (keep_ends ? 0 : size)));
    start = at;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t most) {
  std::string out;
  if (from.empty()) {  // before every character, and at the end
    for (; most != 0; --most) {
      out += to;
      if (text.empty()) return out;
      const size_t size = character_size(text);
      out += text.substr(0, size);
      text.remove_prefix(size);
    }
    return out.append(text);
  }
  for (; most != 0; --most) {
    const size_t found = text.find(from);
    if (found == std::string_view::npos) break;
    out.append(text.substr(0, found)).append(to);
    text.remove_prefix(found + from.size());
  }
  return out.append(text);
}

std::string upper(std::string_view text) { return map_case(text, Case::upper); }
std::string lower(std::string_view text) { return map_case(text, Case::lower); }

std::string capitalize(std::string_view text) {
  if (text.empty()) return "";
  std::string out;
  const size_t first = character_size(text);
  append_case(text.substr(0, first), Case::title, out);
  return out + lower(text.substr(first));
}

std::string title(std::string_view text) {
  std::string out;
  bool inside = false;
  for (const std::string_view character : characters_of(text)) {
    append_case(character, inside ? Case::lower : Case::title, out);
    const char32_t c = code_at(character);
    inside = c != kInvalid && is_cased(c);
  }
  return out;
}

std::string title_words(std::string_view text) {
  std::string out;
  bool inside = false;
  for (const std::string_view character : characters_of(text)) {
    const bool between =
        starts_with_space(character) || std::string_view("-({[<").find(character[0]) < 5;
    append_case(character, inside ? Case::lower : Case::upper, out);
    inside = !between;
  }
  return out;
}

bool is_upper(std::string_view text) { return all_cased_are(text, UTF8PROC_CATEGORY_LU); }
bool is_lower(std::string_view text) { return all_cased_are(text, UTF8PROC_CATEGORY_LL); }

std::string repr_of_text(std::string_view text) {
  const bool doubled =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = doubled ? '"' : '\'';
  std::string out(1, quote);
  for (const std::string_view character : characters_of(text)) {
    const char32_t c = code_at(character);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += character;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == kInvalid || is_printable(c)) {
      out += character;
    } else {
      const auto code = static_cast<uint32_t>(c);
      out += c < 0x100     ? fmt::format("\\x{:02x}", code)
             : c < 0x10000 ? fmt::format("\\u{:04x}", code)
                           : fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto done = std::to_chars(buffer, buffer + 40, number, std::chars_format::scientific);
  const std::string_view shortest(buffer, static_cast<size_t>(done.ptr - buffer));
  const size_t e = shortest.find('e');
  int exponent = 0;
  const char* digits = shortest.data() + e + 1 + (shortest[e + 1] == '+' ? 1 : 0);
  std::from_chars(digits, shortest.data() + shortest.size(), exponent);
  // Shortest digits as repr() has them: scientific below 1e-4 and from 1e16 on.
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  const auto fixed = std::to_chars(buffer, buffer + 40, number, std::chars_format::fixed);
  std::string text(buffer, fixed.ptr);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string json_quoted(std::string_view text, bool ascii_only) {
  std::string out = "\"";
  for (const std::string_view character : characters_of(text)) {
    const char32_t c = code_at(character);
    const auto code = static_cast<uint32_t>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += character;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\b') {
      out += "\\b";
    } else if (c == '\f') {
      out += "\\f";
    } else if (c < 0x20 || (ascii_only && c >= 0x80 && c < 0x10000)) {
      out += fmt::format("\\u{:04x}", code);
    } else if (ascii_only && c >= 0x10000 && c != kInvalid) {
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                         0xDC00 + ((code - 0x10000) & 0x3FF));
    } else {
      out += character;
    }
  }
  return out + '"';
}

}  // namespace fovea::jinja
