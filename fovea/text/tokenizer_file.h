// Reads a tokenizer.json into the parts of a tokenizer.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fovea/text/added_tokens.h"
#include "fovea/text/bpe.h"
#include "fovea/text/metaspace.h"
#include "fovea/text/normalizer.h"
#include "fovea/text/tokenizer.h"
#include "fovea/text/unigram.h"
#include "fovea/text/word_splitter.h"

namespace fovea {

struct TokenizerParts {
  /// The text of each token in words: bytes, or characters with marks for spaces; "" = none.
  std::vector<std::string> names;
  /// The bytes of text that each token stands for; "" of special tokens.
  std::vector<std::string> pieces;
  std::vector<BpeMerge> merges;
  BpeOptions bpe;
  std::optional<UnigramOptions> unigram;  ///< then `scores` instead of `merges`
  std::vector<double> scores;
  /// Nothing in the file needs valid UTF-8.
  bool takes_any_bytes = false;
  Normalizer normalizer;
  std::vector<WordSplitter::Rule> rules;
  std::optional<Metaspace> metaspace;                 ///< after the rules
  std::vector<AddedToken> raw_tokens, normal_tokens;  ///< found before and after normalisation
  std::vector<SpecialToken> specials;
  int32_t bos = -1;
  std::string text_prefix;  ///< see Tokenizer::text_prefix
};

/// Every key that would change an encoding is read or refused. `where` names the file in errors.
/// InputError for a damaged file, UnsupportedError for parts that are not read, by name.
TokenizerParts read_tokenizer_file(const nlohmann::json& root, const std::string& where);

}  // namespace fovea
