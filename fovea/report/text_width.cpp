// UTF-8 on terminals and in pages: repair, cell widths, shortening, wrapping, escaping.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "fovea/report/format.h"

namespace fovea {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr std::string_view kEllipsis = "\xE2\x80\xA6";     // U+2026

struct Character {
  char32_t code = 0;
  size_t bytes = 0;  // 0: not a character
};

/// The character at the start of `text`; overlong forms, surrogates and codes above U+10FFFF are
/// none.
Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t count = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < count) return {};
  char32_t code = lead & (0xFF >> (count + 1));
  for (size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = (code << 6) | (byte(i) & 0x3F);
  }
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kSmallest[count] || code > 0x10FFFF || surrogate) return {};
  return {code, count};
}

struct WideRange {
  char32_t first, last;
};

bool in_ranges(char32_t code, std::span<const WideRange> ranges) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [code](const WideRange& r) { return code >= r.first && code <= r.last; });
}

// The common combining blocks and joiners; a character missing here only shifts a column by one
// cell.
constexpr WideRange kZeroWidth[] = {
    {0x0300, 0x036F}, {0x0483, 0x0489}, {0x0591, 0x05BD}, {0x0610, 0x061A},
    {0x064B, 0x065F}, {0x0900, 0x0902}, {0x0E31, 0x0E31}, {0x0E34, 0x0E3A},
    {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF}, {0x200B, 0x200F}, {0x202A, 0x202E},
    {0x2060, 0x2064}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}};
constexpr WideRange kDoubleWidth[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},   {0x3041, 0x33FF},
                                      {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xA000, 0xA4CF},
                                      {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},
                                      {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},   {0x1F300, 0x1F64F},
                                      {0x1F680, 0x1F6FF}, {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};

int64_t cells(char32_t code) {
  if (in_ranges(code, kZeroWidth)) return 0;
  return in_ranges(code, kDoubleWidth) ? 2 : 1;
}

/// Bytes of the longest prefix that takes at most `width` cells.
size_t prefix_bytes(std::string_view text, int64_t width) {
  int64_t used = 0;
  size_t position = 0;
  while (position < text.size()) {
    const Character character = first_character(text.substr(position));
    const size_t bytes = std::max<size_t>(character.bytes, 1);
    used += cells(character.code);
    if (used > width) break;
    position += bytes;
  }
  return position;
}

}  // namespace

std::string single_line(std::string_view text) {
  const std::string valid = repair_utf8(text);
  std::string out;
  for (size_t i = 0; i < valid.size();) {
    const Character character = first_character(std::string_view(valid).substr(i));
    // C0, DEL and C1: terminals act on all of them.
    const bool control = character.code < 0x20 || (character.code >= 0x7F && character.code < 0xA0);
    if (control) {
      out += ' ';
    } else {
      out.append(valid, i, character.bytes);
    }
    i += character.bytes;
  }
  return out;
}

int64_t display_width(std::string_view text) {
  int64_t width = 0;
  while (!text.empty()) {
    const Character character = first_character(text);
    width += cells(character.code);
    text.remove_prefix(std::max<size_t>(character.bytes, 1));
  }
  return width;
}

std::string shorten(std::string_view text, int64_t width) {
  if (display_width(text) <= width) return std::string(text);
  if (width <= 0) return "";
  return std::string(text.substr(0, prefix_bytes(text, width - 1))) + std::string(kEllipsis);
}

std::vector<std::string> wrap_text(std::string_view text, int64_t width) {
  width = std::max<int64_t>(width, 2);  // a wide character fits
  std::vector<std::string> lines;
  while (display_width(text) > width) {
    const size_t fits = prefix_bytes(text, width);
    // A space right behind the line ends a word too.
    size_t space = text.substr(0, fits + 1).rfind(' ');
    if (space == std::string_view::npos || space == 0) space = fits;
    lines.emplace_back(text.substr(0, space));
    text.remove_prefix(space);
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  }
  if (!text.empty() || lines.empty()) lines.emplace_back(text);
  return lines;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : repair_utf8(text)) {
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
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '\0':
        out += kReplacement;
        break;  // browsers drop or refuse it
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace fovea
