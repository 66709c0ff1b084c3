// Byte n-gram models, the baselines that a trained model has to beat.
//
// Witten-Bell interpolation: with h a context of n-1 bytes, h' the same without its oldest byte, c
// counts and T(h) the number of different bytes seen after h,
//   P(w | h) = (c(h w) + T(h) P(w | h')) / (c(h) + T(h)),   P(w) without context: 1/256.
// A document begins with a BOS mark that serves as context and is never predicted.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "fovea/data/batch_stream.h"
#include "fovea/data/corpus.h"

namespace fovea {

struct NgramScore {
  double nats = 0;    // total negative log-likelihood
  int64_t bytes = 0;  // predicted
  double bits_per_byte() const;
};

/// Counts of bytes, pairs and triples: one object gives the unigram, bigram and trigram models. 68
/// MB.
class ByteNgrams {
 public:
  static constexpr int max_order = 3;
  ByteNgrams();

  /// Counts one document, or its next part where `begins` is false.
  void add(std::string_view text, bool begins = true);
  /// Counts the counted targets of a training batch, with the context that score() gives them.
  void add(const Batch& batch, const Tokenizer& tokenizer);
  /// Bytes counted.
  int64_t bytes() const;
  /// Log-likelihood in nats of `byte` after `context` (oldest first, at most the last order-1 bytes
  /// are used); `at_start`: the context reaches back to the beginning of the document.
  double log_probability(int order, std::string_view context, bool at_start, uint8_t byte) const;
  /// The counted targets of the validation batches, each predicted from the text before it in its
  /// row and document: a model sees no more of it.
  NgramScore score(int order, const ValidationSet& set, const Tokenizer& tokenizer) const;

 private:
  static constexpr int kBos = 256, kSymbols = 257;
  void count(int older, int newer, uint8_t byte);
  double probability(int order, int older, int newer, uint8_t byte) const;

  int last_ = -1, before_last_ = -1;       // context of add(); -1: none
  std::vector<uint32_t> pairs_, triples_;  // [symbol][byte], [symbol][symbol][byte]
  std::vector<uint64_t> singles_;          // [byte]
};

/// Counts all training documents of all sources (weights do not count here).
ByteNgrams fit_ngrams(const Corpus& corpus);

}  // namespace fovea
