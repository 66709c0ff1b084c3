// UTF-8: validation, repair, and a stream that never emits half a character.
//
// "Valid" is the Unicode definition: no overlong forms, no surrogates, nothing above U+10FFFF.
// Repair replaces each maximal invalid subpart by one U+FFFD (Unicode 15, section 3.9), as Python's
// errors="replace" does.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fovea {

/// The head of some bytes, as UTF-8.
struct Utf8Step {
  enum class Kind { character, invalid, incomplete };
  Kind kind = Kind::character;
  size_t size = 0;  // bytes of the character, of the invalid subpart, or of the unfinished
                    // character (to the end)
};

/// Looks at the first character of `bytes`, which must not be empty.
Utf8Step utf8_step(std::string_view bytes);

/// The code point of the valid character of `size` bytes at the head of `bytes`.
char32_t utf8_character(std::string_view bytes, size_t size);

/// `code` in UTF-8.
std::string utf8_bytes(char32_t code);

/// Length of the longest valid prefix of whole characters; equals bytes.size() for valid text.
size_t valid_utf8_prefix(std::string_view bytes);

/// `bytes` with every invalid subpart replaced by U+FFFD.
std::string repair_utf8(std::string_view bytes);

/// Number of bytes at the end of `bytes` that begin a character which the end cuts off: 0 to 3.
size_t utf8_unfinished_tail(std::string_view bytes);

/// Collects bytes and hands out whole characters.
class Utf8Stream {
 public:
  /// All characters that are complete now, repaired.
  std::string push(std::string_view bytes);
  /// U+FFFD for a held-back unfinished character, else "". The stream is then as new.
  std::string finish();

 private:
  std::string held_;  // at most 3 bytes
};

}  // namespace fovea
