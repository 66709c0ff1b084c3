// The notation of bytes and spaces in tokenizer files.
//
// Byte-level tokenizers use GPT-2's table of printable characters: the printable bytes of Latin-1
// stand for themselves, the others for U+0100, U+0101, ... in order. SentencePiece writes a byte as
// `<0x0A>` and a space as U+2581.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// The character of each byte, in UTF-8.
const std::array<std::string, 256>& byte_names();

/// `bytes` in these characters.
std::string name_of_bytes(std::string_view bytes);

/// The inverse; nothing where a character is not of the table.
std::optional<std::string> bytes_of_name(std::string_view name);

/// SentencePiece's mark for a space: U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// The tokens `<0x00>` to `<0xFF>` of a vocabulary, -1 = none.
using ByteTokens = std::array<int32_t, 256>;
ByteTokens no_byte_tokens();

/// The byte that a token like `<0x0A>` names.
std::optional<uint8_t> named_byte(std::string_view token);

/// Appends the tokens of all bytes, or nothing and false where one has none.
bool append_byte_tokens(std::string_view bytes, const ByteTokens& byte_tokens,
                        std::vector<int32_t>& tokens);

}  // namespace fovea
