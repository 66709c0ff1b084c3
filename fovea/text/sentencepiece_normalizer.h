// Changes a text before SentencePiece splits it into pieces. Private to the SentencePiece
// tokenizer.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fovea/text/charsmap.h"
#include "fovea/text/piece_trie.h"
#include "fovea/text/sentencepiece_model.h"
#include "fovea/text/utf8.h"

namespace fovea {

class SentencePieceNormalizer {
 public:
  SentencePieceNormalizer(const SentencePieceModel& model, const std::string& where);

  /// The changed text, valid UTF-8, with U+FFFD for every invalid byte. `goes_on`: the text stands
  /// behind other text, so no space is put before it.
  std::string apply(std::string_view text, bool goes_on = false) const;

  /// Calls found(id) for the pieces of the user in normal text, and other(text) for the text
  /// between them.
  template <class Other, class Found>
  void split(std::string_view text, const Other& other, const Found& found) const {
    size_t done = 0;
    for (size_t i = 0; has_user_pieces_ && i < text.size();) {
      const auto [size, id] = user_piece(text.substr(i));
      if (size == 0) {
        i += utf8_step(text.substr(i)).size;
        continue;
      }
      if (i > done) other(text.substr(done, i - done));
      found(id);
      done = i += size;
    }
    if (done < text.size()) other(text.substr(done));
  }

 private:
  struct UserPiece {
    size_t size = 0;  // 0: none
    int32_t id = -1;
  };
  UserPiece user_piece(std::string_view text) const;
  /// The normal form of the head of a text, and how many bytes that is.
  struct Head {
    std::string_view normal;
    size_t size = 0;
  };
  Head head(std::string_view text) const;

  bool prefix_, suffix_, remove_extra_;
  std::string_view space_;
  std::optional<Charsmap> charsmap_;
  PieceTrie user_pieces_;  // longest at the head of a text
  bool has_user_pieces_;
};

}  // namespace fovea
