// How byte-level tokenizers write bytes: GPT-2's table of printable characters.
//
// The printable bytes of Latin-1 stand for themselves, the others for U+0100, U+0101, ... in order.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace fovea {

/// The character of each byte, in UTF-8.
const std::array<std::string, 256>& byte_names();

/// `bytes` in these characters.
std::string name_of_bytes(std::string_view bytes);

/// The inverse; nothing where a character is not of the table.
std::optional<std::string> bytes_of_name(std::string_view name);

}  // namespace fovea
