// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/characters.h"

#include <utf8proc.h>

#include "fovea/text/utf8.h"

namespace fovea {
namespace {

bool is_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Letters, marks, digits, connectors, joiners; and the letters in circles and squares.
bool is_word(char32_t c) {
  const bool enclosed = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                        (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  if (enclosed || c == 0x200C || c == 0x200D) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

char32_t first(std::string_view text) { return utf8_character(text, utf8_step(text).size); }

size_t last_size(std::string_view text) {
  size_t size = 1;
  while (size < text.size() &&
         (static_cast<unsigned char>(text[text.size() - size]) & 0xC0) == 0x80)
    ++size;
  return size;
}

}  // namespace

size_t leading_spaces(std::string_view text) {
  size_t size = 0;
  while (size < text.size() && is_space(first(text.substr(size))))
    size += utf8_step(text.substr(size)).size;
  return size;
}

size_t trailing_spaces(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t size = last_size(text.substr(0, end));
    if (!is_space(first(text.substr(end - size)))) break;
    end -= size;
  }
  return text.size() - end;
}

bool starts_with_word(std::string_view text) { return !text.empty() && is_word(first(text)); }

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word(first(text.substr(text.size() - last_size(text))));
}

}  // namespace fovea
