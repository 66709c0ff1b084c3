// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace fovea {
namespace {

struct Character {
  size_t bytes = 0;  // 0: no UTF-8
  uint32_t code = 0;
};

/// The character at the head of `text`, which is not empty.
Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t head = byte(0);
  if (head < 0x80) return {1, head};
  const size_t bytes = head >= 0xF0 ? 4 : head >= 0xE0 ? 3 : 2;
  if (head < 0xC2 || head > 0xF4 || text.size() < bytes) return {};
  uint32_t code = head & (0xFFu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code < least[bytes] || code > 0x10FFFF || surrogate ? Character{} : Character{bytes, code};
}

bool acts_on_terminals(uint32_t code) {
  const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  const bool direction = (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  return control || direction;
}

std::string escaped(std::string_view text, bool keep_newlines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    const bool kept = keep_newlines && text.front() == '\n';
    const size_t bytes = c.bytes == 0 ? 1 : c.bytes;
    if (c.bytes > 0 && (kept || !acts_on_terminals(c.code))) {
      out += text.substr(0, bytes);
    } else {
      for (const char byte : text.substr(0, bytes))
        out += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
    }
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, /*keep_newlines=*/true); }

std::string printable_line(std::string_view text) { return escaped(text, /*keep_newlines=*/false); }

std::string shortened(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  const auto at_character = [&](size_t at) {
    while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) ++at;
    return at;
  };
  const size_t head = at_character(most / 3 * 2), tail = at_character(text.size() - most / 3);
  return fmt::format("{} [... {} bytes ...] {}", text.substr(0, head), tail - head,
                     text.substr(tail));
}

}  // namespace fovea
