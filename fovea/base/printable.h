// Text from files, made safe for a terminal.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace fovea {

/// `text` with hexadecimal escapes in place of control characters (C0 but newlines, DEL, C1), marks
/// that turn the direction of writing, and bytes that are no UTF-8. A name in a file then cannot
/// act on the terminal that shows it. Text without any of these comes back unchanged.
std::string printable(std::string_view text);

/// The same for one line: newlines are escaped too.
std::string printable_line(std::string_view text);

/// Text of at most `most` bytes, give or take a character: where it is longer, the middle is left
/// out, and a note says how many bytes these are. Expects UTF-8 without control characters.
std::string shortened(std::string_view text, size_t most);

}  // namespace fovea
