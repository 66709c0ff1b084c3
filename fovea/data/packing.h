// Packing: documents end to end as one virtual stream, read in rows.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/data/batch.h"
#include "fovea/data/corpus.h"

namespace fovea {

/// Whether the end mark of a document is a target: yes in training, no in scoring (it is no text).
enum class EndMarks { targets, not_scored };

/// Documents in a given order, BOS + tokens + EOS each, cut into rows. Refers to `documents` and
/// `store`.
class PackedDocuments {
 public:
  /// `order`: indices into `documents`, each once.
  PackedDocuments(std::span<const DocumentSpan> documents, std::vector<int32_t> order,
                  const TokenStore& store, const Tokenizer& tokenizer, int64_t sequence_length,
                  int64_t scored_tail = 0);

  int64_t tokens() const { return starts_.back(); }
  /// The last row may be partly filled.
  int64_t rows() const { return (tokens() + sequence_length_ - 1) / sequence_length_; }
  /// Fills row `at` of a batch (from empty_batch) with row `row` of the stream.
  void read_row(int64_t row, EndMarks end_marks, Batch& batch, int64_t at) const;

 private:
  int64_t length_of(int64_t document) const {
    return starts_[static_cast<size_t>(document) + 1] - starts_[static_cast<size_t>(document)];
  }
  void read_tokens(int64_t document, int64_t first, std::span<int32_t> out) const;

  std::span<const DocumentSpan> documents_;
  std::vector<int32_t> order_;
  std::vector<int64_t> starts_;  // in the stream, one more than documents
  const TokenStore& store_;
  int32_t bos_, eos_, pad_;
  int64_t sequence_length_;
  int64_t scored_tail_;  // > 0: only the last so many text tokens and the end mark are targets
};

/// A batch with all its vectors, inputs pad, targets -1.
Batch empty_batch(int64_t rows, int64_t length);

}  // namespace fovea
