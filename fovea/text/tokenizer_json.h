// Writes the tokenizer.json of a byte-level BPE, as the `tokenizers` package reads it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/text/tokenizer.h"

namespace fovea {

struct ByteLevelFile {
  std::vector<std::string> pieces;  ///< bytes of each id from 0; "" = no token
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<SpecialToken> specials;
  std::optional<SpecialToken> begin;  ///< is put before every text
  std::string pattern;                ///< words are its matches; "" = every text is one word
  bool whole_words = false;           ///< a word that is a token is that token (ignore_merges)
  bool normal_form = false;           ///< NFC comes first
};

std::string byte_level_json(const ByteLevelFile& file);

/// The length of a prefix of `text` that ends where no word of the usual patterns and no normal
/// form crosses. That is before the one space between two ASCII letters, or after a line end
/// between two visible ASCII characters. 0 where there is no such place.
size_t safe_cut(std::string_view text);

}  // namespace fovea
