// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/charsmap.h"

#include <utf8proc.h>

#include <cstring>

#include "fovea/base/error.h"
#include "fovea/text/utf8.h"

namespace fovea {
namespace {

// A unit of the double array. Bits 0-7 are the label of the arc into it, bit 31 is set where it
// holds a value (bits 0-30); bit 8 says that a value follows, bits 9-31 how far the children are.
uint32_t label(uint32_t unit) { return unit & 0x800000FFu; }
bool has_value(uint32_t unit) { return (unit >> 8 & 1u) != 0; }
uint32_t value(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

/// Bytes of the cluster of characters at the head of valid UTF-8.
size_t cluster_size(std::string_view text) {
  size_t size = utf8_step(text).size;
  utf8proc_int32_t state = 0;
  auto last = static_cast<utf8proc_int32_t>(utf8_character(text, size));
  while (size < text.size()) {
    const size_t step = utf8_step(text.substr(size)).size;
    const auto next = static_cast<utf8proc_int32_t>(utf8_character(text.substr(size), step));
    if (utf8proc_grapheme_break_stateful(last, next, &state)) break;
    size += step;
    last = next;
  }
  return size;
}

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& where) {
  uint32_t size = 0;
  if (bytes.size() >= sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
  const bool fits = bytes.size() > sizeof size && size >= 4 && size < bytes.size() - sizeof size;
  require<InputError>(fits && size % 4 == 0, where,
                      "the character map is damaged: {} bytes that announce a table of {}",
                      bytes.size(), size);
  bytes.remove_prefix(sizeof size);
  units_.resize(size / 4);
  std::memcpy(units_.data(), bytes.data(), size);
  replacements_ = bytes.substr(size);
}

std::optional<Charsmap::Match> Charsmap::find(std::string_view text, bool first) const {
  std::optional<Match> found;
  uint32_t node = offset(units_[0]);
  for (size_t i = 0; i < text.size() && text[i] != 0; ++i) {
    const uint32_t byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    if (node >= units_.size() || label(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= offset(unit);
    if (!has_value(unit)) continue;
    if (node >= units_.size()) break;
    found = Match{i + 1, replacement_at(value(units_[node]))};
    if (first) break;
  }
  return found;
}

std::string_view Charsmap::replacement_at(uint32_t place) const {
  require<InputError>(place < replacements_.size(), "tokenizer",
                      "the character map is damaged: an entry beyond its end");
  const std::string_view rest = std::string_view(replacements_).substr(place);
  return rest.substr(0, rest.find('\0'));
}

std::string Charsmap::apply_to_clusters(std::string_view text) const {
  constexpr size_t kLongestCluster = 5;
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::string_view cluster = text.substr(0, cluster_size(text));
    text.remove_prefix(cluster.size());
    const auto whole = cluster.size() <= kLongestCluster ? shortest(cluster) : std::nullopt;
    if (whole) {
      out += whole->replacement;
      continue;
    }
    while (!cluster.empty()) {
      const std::string_view character = cluster.substr(0, utf8_step(cluster).size);
      const auto found = shortest(character);
      out += found ? found->replacement : character;
      cluster.remove_prefix(character.size());
    }
  }
  return out;
}

}  // namespace fovea
