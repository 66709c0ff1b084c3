// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "fovea/base/error.h"
#include "fovea/text/utf8.h"

namespace fovea {
namespace {

struct Range {
  char32_t first, last;
};

// Combining marks and compositions of Unicode 10 to 16: the tables of the `tokenizers` package end
// with Unicode 9, and to it these are ordinary characters. Found by asking it about every code
// point (tests/peers/check_tokenizers.py); those of Unicode 15 and 16 from the standard's list.
constexpr Range kNewer[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x105C9, 0x105C9},
    {0x105E4, 0x105E4}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC},
    {0x10EFC, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x11382, 0x113D2}, {0x113E1, 0x113E2}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x1611E, 0x1612F},
    {0x16D63, 0x16D6A}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF},
};

bool is_newer(char32_t c) {
  const auto* range = std::ranges::lower_bound(kNewer, c, {}, &Range::last);
  return range != std::end(kNewer) && range->first <= c;
}

/// Appends valid UTF-8 in the normal form of utf8proc's Unicode.
void append_normal(std::string_view text, NormalForm form, std::string& out) {
  if (text.empty()) return;
  const bool composed = form == NormalForm::c || form == NormalForm::kc;
  const bool compatible = form == NormalForm::kc || form == NormalForm::kd;
  const int options = UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                             static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(mapped, std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  require<InputError>(size >= 0, "tokenizer", "text cannot be normalised: {}",
                      utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
}

}  // namespace

bool surely_normal_form_c(std::string_view text) {
  // U+0300 is 0xCC 0x80: every byte of a smaller character is below 0xCC.
  return std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

std::string normal_form(std::string_view text, NormalForm form) {
  std::string out;
  while (!text.empty()) {
    // Up to the next character that stays as it is: an invalid byte, or one newer than Unicode 9.
    size_t end = 0, kept = 0;
    while (end < text.size()) {
      const Utf8Step step = utf8_step(text.substr(end));
      if (step.kind != Utf8Step::Kind::character ||
          is_newer(utf8_character(text.substr(end), step.size))) {
        kept = step.size;
        break;
      }
      end += step.size;
    }
    append_normal(text.substr(0, end), form, out);
    out.append(text.substr(end, kept));
    text.remove_prefix(end + kept);
  }
  return out;
}

std::string lower_case(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t size = utf8_step(text).size;
    const char32_t c = utf8_character(text, size);
    if (c == 0x130) {
      out += "i\u0307";  // the one character with a lower case of two
    } else {
      out += utf8_bytes(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
    text.remove_prefix(size);
  }
  return out;
}

std::string without_marks(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t size = utf8_step(text).size;
    const char32_t c = utf8_character(text, size);
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    const bool mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
                      category == UTF8PROC_CATEGORY_ME;
    if (!mark) out += text.substr(0, size);
    text.remove_prefix(size);
  }
  return out;
}

}  // namespace fovea
