// Classes of characters at the ends of a text, as in Rust's regular expressions.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace fovea {

/// Number of bytes of white space (White_Space) at the start and at the end of valid UTF-8.
size_t leading_spaces(std::string_view text);
size_t trailing_spaces(std::string_view text);

/// Whether the first or last character is of a word (a letter, digit or underscore).
bool starts_with_word(std::string_view text);
bool ends_with_word(std::string_view text);

}  // namespace fovea
