// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/byte_names.h"

namespace fovea {
namespace {

bool is_printable_latin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr int kFirstOther = 0x100, kEnd = 0x144;  // 68 bytes are not printable

/// Byte of each character below kEnd, -1 where it is none.
std::array<int16_t, kEnd> make_bytes() {
  std::array<int16_t, kEnd> bytes{};
  bytes.fill(-1);
  int next = kFirstOther;
  for (int byte = 0; byte < 256; ++byte)
    bytes[static_cast<size_t>(is_printable_latin1(byte) ? byte : next++)] =
        static_cast<int16_t>(byte);
  return bytes;
}

const std::array<int16_t, kEnd>& bytes_of_characters() {
  static const std::array<int16_t, kEnd> bytes = make_bytes();
  return bytes;
}

}  // namespace

const std::array<std::string, 256>& byte_names() {
  static const auto names = [] {
    std::array<std::string, 256> result;
    for (int code = 0; code < kEnd; ++code) {
      const int byte = bytes_of_characters()[static_cast<size_t>(code)];
      if (byte < 0) continue;
      std::string& name = result[static_cast<size_t>(byte)];
      if (code < 0x80) {
        name = static_cast<char>(code);
      } else {  // all are below U+0800
        name = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
      }
    }
    return result;
  }();
  return names;
}

std::string name_of_bytes(std::string_view bytes) {
  std::string name;
  for (const char byte : bytes) name += byte_names()[static_cast<uint8_t>(byte)];
  return name;
}

std::optional<std::string> bytes_of_name(std::string_view name) {
  std::string bytes;
  for (size_t i = 0; i < name.size(); ++i) {
    int code = static_cast<uint8_t>(name[i]);
    if (code >= 0x80) {
      if ((code & 0xE0) != 0xC0 || i + 1 == name.size()) return std::nullopt;
      code = (code & 0x1F) << 6 | (static_cast<uint8_t>(name[++i]) & 0x3F);
    }
    const int byte = code < kEnd ? bytes_of_characters()[static_cast<size_t>(code)] : -1;
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

ByteTokens no_byte_tokens() {
  ByteTokens tokens;
  tokens.fill(-1);
  return tokens;
}

std::optional<uint8_t> named_byte(std::string_view token) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const size_t high = kDigits.find(token[3]), low = kDigits.find(token[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return static_cast<uint8_t>(high << 4 | low);
}

bool append_byte_tokens(std::string_view bytes, const ByteTokens& byte_tokens,
                        std::vector<int32_t>& tokens) {
  const size_t before = tokens.size();
  for (const char byte : bytes) {
    const int32_t token = byte_tokens[static_cast<uint8_t>(byte)];
    if (token < 0) {
      tokens.resize(before);
      return false;
    }
    tokens.push_back(token);
  }
  return true;
}

}  // namespace fovea
