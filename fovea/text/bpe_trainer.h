// Learns a byte-level BPE tokenizer from text.
//
// Words are those of GPT-2's pattern. In each step the pair of neighbours that stands most often in
// the text is merged; of equals, the pair whose pieces are greater, byte by byte. So the result is
// a function of the text alone, not of its order.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fovea/text/tokenizer.h"
#include "fovea/text/word_splitter.h"

namespace fovea {

class BpeTrainer {
 public:
  BpeTrainer();

  /// Counts the words of a text; a word does not reach over the end of a call.
  void add(std::string_view text);
  /// Counts the words of a part of a text that goes on, as far as they are certain; returns how
  /// many bytes were counted.
  size_t add_prefix(std::string_view text);
  int64_t bytes() const { return bytes_; }
  size_t words() const { return counts_.size(); }

  /// Merges as (left, right) pieces, at most `count`; fewer where no pair stands twice.
  /// `progress(done, total)`; it may throw.
  using Merges = std::vector<std::pair<std::string, std::string>>;
  Merges train(int64_t count, const std::function<void(int64_t, int64_t)>& progress = {}) const;

 private:
  WordSplitter splitter_;
  std::unordered_map<std::string, int64_t> counts_;
  int64_t bytes_ = 0;
};

/// The tokenizer of these merges: ids 0 ... 255 are the bytes, then the merges, then `<|begin|>`,
/// `<|end|>` and `<|pad|>`. Encoding with the `tokenizers` package puts `<|begin|>` first.
std::shared_ptr<const Tokenizer> make_bpe_tokenizer(const BpeTrainer::Merges& merges);

}  // namespace fovea
