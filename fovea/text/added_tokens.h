// Finds added tokens of tokenizer.json as strings in a text, before the text is split into words.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/text/characters.h"

namespace fovea {

struct AddedToken {
  std::string text;
  int32_t id = 0;
  /// The text of a special token stays text. It is found all the same: no other token begins in it.
  bool special = false;
  bool single_word = false;                        ///< only where no word goes on at its ends
  bool strip_before = false, strip_after = false;  ///< takes the white space around it
};

/// Finds the tokens of a list in a text: leftmost, then longest.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }

  /// Calls found(id) for each token and other(text) for the text between tokens, in order. The text
  /// is valid UTF-8 where a token looks at its surroundings.
  template <class Other, class Found>
  void split(std::string_view text, const Other& other, const Found& found) const {
    size_t done = 0;
    for (size_t i = 0; !tokens_.empty() && i < text.size();) {
      const AddedToken* hit = at(text, i);
      if (hit == nullptr) {
        ++i;
        continue;
      }
      const size_t begin = i, end = i + hit->text.size();
      i = end;
      if (hit->special || (hit->single_word && (ends_with_word(text.substr(0, begin)) ||
                                                starts_with_word(text.substr(end)))))
        continue;
      const size_t before = hit->strip_before ? trailing_spaces(text.substr(0, begin)) : 0;
      const size_t after = hit->strip_after ? leading_spaces(text.substr(end)) : 0;
      if (done < begin - before) other(text.substr(done, begin - before - done));
      found(hit->id);
      done = end + after;
    }
    if (done < text.size()) other(text.substr(done));
  }

 private:
  /// The longest token that stands at a place.
  const AddedToken* at(std::string_view text, size_t place) const;

  std::vector<AddedToken> tokens_;  // the longest first
  std::array<std::vector<size_t>, 256> by_byte_;
};

}  // namespace fovea
