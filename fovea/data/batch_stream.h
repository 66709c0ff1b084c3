// BatchStream: training batches from a corpus, shuffled by seed, weighted by source, resumable at
// any batch.
//
// Per source and epoch the documents are permuted and laid end to end; that virtual stream is cut
// into rows of `sequence_length` inputs, and the rows are permuted too. So each document occurs
// exactly once per epoch and nothing but a row counter has to be kept. The last row of an epoch is
// filled up with pad tokens that carry no loss. The source of a row is the one furthest behind its
// share, so shares are exact to within one row at any time.
//
// Rows are counted over all ranks. A rank hands out a contiguous slice of each batch, so rows and
// states do not depend on the number of ranks: a run may go on with another one.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fovea/data/batch.h"
#include "fovea/data/corpus.h"

namespace fovea {

class PackedEpoch;

struct BatchStreamOptions {
  int64_t sequence_length = 0;  // inputs a row, >= 1
  int64_t batch_rows = 0;       // of all ranks, >= 1; may differ from the run of a state
  uint64_t seed = 0;
  int64_t rank = 0, ranks = 1;  // this reader's slice of the rows of each batch
};

class BatchStream : public BatchSource {
 public:
  /// InputError where a source has fewer training tokens than one sequence; ConfigError for sizes
  /// below 1 and for fewer rows than ranks.
  BatchStream(std::shared_ptr<const Corpus> corpus, const BatchStreamOptions& options);
  ~BatchStream() override;

  Batch next() override;
  LoaderState state() const override { return state_; }
  void restore(const LoaderState& state) override;

  /// Rows of one pass over a source.
  int64_t rows_per_epoch(size_t source) const;

 private:
  size_t next_source() const;
  void fill_row(size_t source, int64_t row, Batch& batch, int64_t at);

  std::shared_ptr<const Corpus> corpus_;
  BatchStreamOptions options_;
  LoaderState state_;
  std::vector<double> shares_;                        // per source, sum 1
  std::vector<std::unique_ptr<PackedEpoch>> epochs_;  // per source, the current one
};

/// The fixed validation batches of one source: the packed stream of its validation documents in
/// disjoint windows, the last row filled up with pads. End marks are not scored, so the counted
/// targets predict exactly `bytes` bytes of text. Bits per byte = sum of losses / (bytes ln 2) is
/// therefore comparable across tokenizers (spec 9.3).
struct ValidationSet {
  std::string source;
  std::vector<Batch> batches;  // the last one may have fewer rows
  int64_t targets = 0;         // counted
  int64_t bytes = 0;           // of text, of the counted targets
  bool answers = false;        // the targets of a document are its answer (scored_tail)
};

/// At most `max_tokens` inputs, rounded down to whole rows but at least one row; where that is less
/// than the whole text, the rows are spread evenly over it. Depends on the corpus and these
/// arguments only, so every variant of a comparison sees the same.
ValidationSet validation_batches(const Corpus& corpus, size_t source, int64_t sequence_length,
                                 int64_t batch_rows, int64_t max_tokens);

/// Text bytes of the targets that count.
int64_t bytes_of_targets(const Batch& batch, const Tokenizer& tokenizer);

}  // namespace fovea
