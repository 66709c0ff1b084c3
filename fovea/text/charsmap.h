// The character map of SentencePiece models: strings of characters and their replacements.
//
// A file holds it "precompiled": a 32-bit size, a double array of that many bytes (Darts-clone;
// Yata et al. 2007), then the replacements, each ended by a zero byte.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

class Charsmap {
 public:
  /// InputError where `bytes` is no such map.
  Charsmap(std::string_view bytes, const std::string& where);

  struct Match {
    size_t size = 0;  ///< bytes of the text
    std::string_view replacement;
  };
  /// The longest or the shortest entry at the head of a text.
  std::optional<Match> longest(std::string_view text) const { return find(text, false); }
  std::optional<Match> shortest(std::string_view text) const { return find(text, true); }

  /// A text in the way of the `tokenizers` package: a cluster of characters of at most 5 bytes
  /// becomes the replacement of its shortest entry. In longer clusters each character is replaced
  /// alone.
  std::string apply_to_clusters(std::string_view text) const;

 private:
  std::optional<Match> find(std::string_view text, bool first) const;
  std::string_view replacement_at(uint32_t place) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace fovea
