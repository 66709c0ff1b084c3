// The unigram model of one word: the pieces whose scores add up to the most (Kudo 2018; Viterbi).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/text/byte_names.h"
#include "fovea/text/piece_trie.h"

namespace fovea {

struct UnigramOptions {
  /// The token of characters that no piece covers, one for several in a row; -1 = an error.
  int32_t unknown = -1;
  double unknown_score = 0;
  /// Characters that no piece covers become the tokens of their bytes, where all bytes have one.
  ByteTokens byte_tokens = no_byte_tokens();
  /// Sums are rounded to 32 bits, as in SentencePiece; ties fall otherwise in the `tokenizers`
  /// package.
  bool single_precision = false;
};

class Unigram {
 public:
  /// `pieces[id]` has `scores[id]`; "" is never found.
  Unigram(const std::vector<std::string>& pieces, std::vector<double> scores,
          const UnigramOptions& options);

  /// Appends the tokens of a word, valid UTF-8; it may be a whole text. Time grows with its length
  /// times the length of the longest piece. Safe from several threads.
  void encode(std::string_view word, std::vector<int32_t>& tokens) const;

 private:
  template <class Sum>
  struct Step;
  template <class Sum>
  void encode_in(std::string_view word, std::vector<int32_t>& tokens) const;
  void push_unknown(std::string_view text, std::vector<int32_t>& tokens) const;

  PieceTrie trie_;
  std::vector<double> scores_;
  UnigramOptions options_;
};

}  // namespace fovea
