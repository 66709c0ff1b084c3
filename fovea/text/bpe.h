// Byte-pair encoding of one word: the merge with the lowest rank first, the leftmost of equals,
// until none applies (Sennrich et al. 2016).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fovea {

/// A pair of tokens that becomes one; its rank is its place in the list.
struct BpeMerge {
  int32_t left = 0, right = 0, merged = 0;
};

/// What a byte becomes that has no token, as in tokenizer.json (unk_token, fuse_unk): this token,
/// one for several in a row where they are fused; -1 = nothing, so that its neighbours may merge.
struct UnknownByte {
  int32_t token = -1;
  bool fused = false;
};

class Bpe {
 public:
  /// `pieces[id]` are the bytes of a token ("" = no token of text). With `whole_words` a word that
  /// is a token is that token, whatever the merges would give (tokenizer.json: ignore_merges).
  Bpe(const std::vector<std::string>& pieces, const std::vector<BpeMerge>& merges, bool whole_words,
      UnknownByte unknown = {});

  /// Appends the tokens of a word. O(n log n). Safe from several threads.
  void encode(std::string_view word, std::vector<int32_t>& tokens) const;

 private:
  struct Target {
    int32_t rank = -1, merged = -1;
  };
  const Target* find(int32_t left, int32_t right) const;
  /// The tokens of the bytes of a word.
  void push_bytes(std::string_view word, std::vector<int32_t>& tokens) const;
  void merge(std::string_view word, std::vector<int32_t>& tokens) const;
  void merge_short(std::vector<int32_t>& tokens, size_t begin) const;
  void merge_long(std::vector<int32_t>& tokens, size_t begin) const;

  std::array<int32_t, 256> byte_{};
  UnknownByte unknown_;
  // Open addressing, a power of two of slots, at most half of them filled.
  std::vector<uint64_t> keys_;
  std::vector<Target> targets_;
  std::string text_;                                     // what the keys below view
  std::unordered_map<std::string_view, int32_t> whole_;  // words whose encoding is one token
};

}  // namespace fovea
