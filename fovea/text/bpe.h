// Byte-pair encoding of one word, from its bytes or characters: the merge with the lowest rank
// first, the leftmost of equals, until none applies (Sennrich et al. 2016).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/text/byte_names.h"
#include "fovea/text/word_table.h"

namespace fovea {

/// A pair of tokens that becomes one.
struct BpeMerge {
  int32_t left = 0, right = 0, merged = 0;
  int32_t rank = -1;  ///< the lowest goes first; -1 = its place in the list
};

/// The token of a byte or character that has none, as in tokenizer.json (unk_token, fuse_unk). One
/// token stands for several in a row where they are fused. -1 = no token, so that its neighbours
/// may merge.
struct UnknownUnit {
  int32_t token = -1;
  bool fused = false;
};

struct BpeOptions {
  /// A word that is a token is that token, whatever the merges give (tokenizer.json:
  /// ignore_merges).
  bool whole_words = false;
  UnknownUnit unknown;
  /// Merging starts from bytes or from characters. Words of characters are valid UTF-8.
  enum class Unit { byte, character } unit = Unit::byte;
  /// A character without a token becomes the tokens of its bytes, where all of them have one.
  ByteTokens byte_tokens = no_byte_tokens();
};

class Bpe {
 public:
  /// `pieces[id]` is the text of a token in words ("" = no token of text).
  Bpe(const std::vector<std::string>& pieces, const std::vector<BpeMerge>& merges,
      const BpeOptions& options);

  /// Appends the tokens of a word, which may be a whole text. O(n log n). Safe from several
  /// threads.
  void encode(std::string_view word, std::vector<int32_t>& tokens) const;

 private:
  struct Target {
    int32_t rank = -1, merged = -1;
  };
  const Target* find(int32_t left, int32_t right) const;
  void find_units(const std::vector<std::string>& pieces);
  bool merges_stop_at_mark(const std::vector<std::string>& pieces,
                           const std::vector<BpeMerge>& merges) const;
  /// The tokens of the bytes or characters of a word.
  void push_bytes(std::string_view word, std::vector<int32_t>& tokens) const;
  void push_characters(std::string_view word, std::vector<int32_t>& tokens) const;
  void encode_part(std::string_view part, std::vector<int32_t>& tokens) const;
  void merge(std::string_view word, std::vector<int32_t>& tokens) const;
  void merge_short(std::vector<int32_t>& tokens, size_t begin) const;
  void merge_long(std::vector<int32_t>& tokens, size_t begin) const;

  BpeOptions options_;
  std::vector<int32_t> unit_;  // token of each byte or code point, -1 = none
  bool cut_at_mark_ = false;   // no merge reaches over the start of a run of kSpaceMark
  // Open addressing, a power of two of slots, at most half of them filled.
  std::vector<uint64_t> keys_;
  std::vector<Target> targets_;
  WordTable whole_;  // words whose encoding is one token
};

}  // namespace fovea
