// Python's string functions on UTF-8 text: templates are written for them.
//
// A character is a Unicode code point; an invalid byte run counts as one character. Case follows
// the simple mappings of Unicode, and "ß" becomes "SS"; other characters that Python maps to
// several stay as they are.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::jinja {

/// Bytes of the first character of `text`, which must not be empty.
size_t character_size(std::string_view text);
int64_t count_characters(std::string_view text);
/// Views into `text`.
std::vector<std::string_view> characters_of(std::string_view text);
/// `code` as UTF-8; must be a code point that is no surrogate.
void append_utf8(char32_t code, std::string& out);

/// str.isspace() of the first character.
bool starts_with_space(std::string_view text);
bool is_space(std::string_view text);  ///< all of it, and it is not empty

enum class Side { left, right, both };
/// str.strip(): without white space at the ends, or without the characters of `characters`.
std::string_view strip(std::string_view text, Side side,
                       std::optional<std::string_view> characters = {});

/// str.split() by white space or by `separator`, which must not be empty. `most` splits at most,
/// -1: all; counted from the end for `from_right`.
struct SplitOptions {
  std::optional<std::string_view> separator;
  int64_t most = -1;
  bool from_right = false;
};
std::vector<std::string_view> split(std::string_view text, const SplitOptions& options);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);

/// Replaces the first `most` (-1: all) occurrences.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t most = -1);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);  ///< str.capitalize()
std::string title(std::string_view text);       ///< str.title(): letters after a non-letter
std::string title_words(
    std::string_view text);            ///< jinja's title filter: words between blanks, -([{<
bool is_upper(std::string_view text);  ///< str.isupper()
bool is_lower(std::string_view text);

/// repr() of a string and of a float.
std::string repr_of_text(std::string_view text);
std::string float_text(double number);
/// With &, <, >, " and ' as HTML entities.
std::string escaped(std::string_view text);
/// A JSON string as Python's json.dumps writes it.
std::string json_quoted(std::string_view text, bool ascii_only);

}  // namespace fovea::jinja
