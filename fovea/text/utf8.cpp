// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/utf8.h"

#include <cstdint>
#include <cstring>

namespace fovea {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Legal lead bytes with the length of the character and the range of its second byte (Unicode 15,
// table 3-7). The second byte alone rules out overlong forms, surrogates and values above U+10FFFF.
struct Lead {
  size_t size = 0;  // 0: no lead byte
  uint8_t low = 0x80, high = 0xBF;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// First index from `at` that is not ASCII, eight bytes at a time.
size_t skip_ascii(std::string_view bytes, size_t at) {
  while (at + 8 <= bytes.size()) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    if ((word & 0x8080808080808080ull) != 0) break;
    at += 8;
  }
  while (at < bytes.size() && static_cast<uint8_t>(bytes[at]) < 0x80) ++at;
  return at;
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  const Lead lead = lead_of(static_cast<uint8_t>(bytes[0]));
  if (lead.size == 0) return {Utf8Step::Kind::invalid, 1};
  for (size_t i = 1; i < lead.size; ++i) {
    if (i == bytes.size()) return {Utf8Step::Kind::incomplete, i};
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Utf8Step::Kind::invalid, i};
  }
  return {Utf8Step::Kind::character, lead.size};
}

char32_t utf8_character(std::string_view bytes, size_t size) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (size == 1) return byte(0);
  char32_t c = byte(0) & (0x7Fu >> size);
  for (size_t i = 1; i < size; ++i) c = c << 6 | (byte(i) & 0x3Fu);
  return c;
}

std::string utf8_bytes(char32_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
}

size_t valid_utf8_prefix(std::string_view bytes) {
  size_t at = 0;
  for (;;) {
    at = skip_ascii(bytes, at);
    if (at == bytes.size()) return at;
    const Utf8Step step = utf8_step(bytes.substr(at));
    if (step.kind != Utf8Step::Kind::character) return at;
    at += step.size;
  }
}

std::string repair_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (;;) {
    const size_t valid = valid_utf8_prefix(bytes);
    out.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return out;
    out.append(kReplacement);
    bytes.remove_prefix(utf8_step(bytes).size);
  }
}

size_t utf8_unfinished_tail(std::string_view bytes) {
  for (size_t tail = 1; tail <= 3 && tail <= bytes.size(); ++tail) {
    const std::string_view end = bytes.substr(bytes.size() - tail);
    const auto first = static_cast<uint8_t>(end[0]);
    if (first < 0x80) return 0;
    if (first < 0xC0) continue;  // a continuation byte: its lead is further back
    const Utf8Step step = utf8_step(end);
    return step.kind == Utf8Step::Kind::incomplete ? tail : 0;
  }
  return 0;
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_.append(bytes);
  const size_t whole = held_.size() - utf8_unfinished_tail(held_);
  std::string out = repair_utf8(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return out;
}

std::string Utf8Stream::finish() {
  std::string out = repair_utf8(held_);
  held_.clear();
  return out;
}

}  // namespace fovea
