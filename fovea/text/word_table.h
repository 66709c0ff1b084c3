// Words and their tokens, for look-ups by the million: a hash table in two pieces of memory.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

class WordTable {
 public:
  /// Room for this many words.
  explicit WordTable(size_t words) : slots_(std::bit_ceil(2 * words + 2)) {}

  /// A word that is not in the table yet.
  void add(std::string_view word, int32_t token) {
    const uint64_t hash = std::hash<std::string_view>()(word);
    size_t place = hash & (slots_.size() - 1);
    while (slots_[place].token >= 0) place = (place + 1) & (slots_.size() - 1);
    slots_[place] = {tag_of(hash), static_cast<uint32_t>(word.size()), text_.size(), token};
    text_ += word;
    longest_ = std::max(longest_, word.size());
  }

  /// The token of a word, -1 where it has none.
  int32_t find(std::string_view word) const {
    if (word.size() > longest_) return -1;
    const uint64_t hash = std::hash<std::string_view>()(word);
    for (size_t place = hash & (slots_.size() - 1);; place = (place + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[place];
      if (slot.token < 0) return -1;
      if (slot.tag == tag_of(hash) && slot.size == word.size() &&
          std::string_view(text_).substr(slot.begin, slot.size) == word)
        return slot.token;
    }
  }

 private:
  // The tag spares most comparisons, which would wait for another line of memory.
  struct Slot {
    uint32_t tag = 0, size = 0;
    uint64_t begin = 0;
    int32_t token = -1;
  };
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

  std::vector<Slot> slots_;  // a power of two, at most half of them filled
  std::string text_;
  size_t longest_ = 0;
};

}  // namespace fovea
