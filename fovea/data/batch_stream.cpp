// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/batch_stream.h"

#include <algorithm>
#include <numeric>

#include "fovea/base/error.h"
#include "fovea/base/rng.h"
#include "fovea/data/packing.h"
#include "fovea/data/permutation.h"

namespace fovea {
namespace {

// Streams of random numbers drawn from one seed.
enum Purpose : uint64_t { document_order = 1, row_order = 2 };

std::vector<int32_t> shuffled(size_t count, uint64_t seed) {
  std::vector<int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  Rng rng(seed);
  for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

std::vector<int32_t> in_order(size_t count) {
  std::vector<int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

void require_sizes(int64_t sequence_length, int64_t batch_rows) {
  require<ConfigError>(sequence_length >= 1 && batch_rows >= 1, "data",
                       "expected a sequence length and a batch of at least 1; got {} and {}",
                       sequence_length, batch_rows);
}

}  // namespace

// One pass over the documents of a source: their order, and the order of the rows.
class PackedEpoch {
 public:
  PackedEpoch(const Corpus& corpus, size_t source, int64_t number,
              const BatchStreamOptions& options)
      : number_(number),
        seed_(mix_seed(mix_seed(options.seed, source), static_cast<uint64_t>(number))),
        documents_(corpus.sources()[source].train,
                   shuffled(corpus.sources()[source].train.size(),
                            mix_seed(seed_, Purpose::document_order)),
                   corpus.sources()[source].store, corpus.tokenizer(), options.sequence_length,
                   corpus.sources()[source].scored_tail),
        rows_(mix_seed(seed_, Purpose::row_order), static_cast<uint64_t>(documents_.rows())) {}

  int64_t number() const { return number_; }
  void read_row(int64_t row, Batch& batch, int64_t at) const {
    documents_.read_row(static_cast<int64_t>(rows_(static_cast<uint64_t>(row))), EndMarks::targets,
                        batch, at);
  }

 private:
  int64_t number_;
  uint64_t seed_;
  PackedDocuments documents_;
  Permutation rows_;
};

BatchStream::BatchStream(std::shared_ptr<const Corpus> corpus, const BatchStreamOptions& options)
    : corpus_(std::move(corpus)), options_(options) {
  require_sizes(options.sequence_length, options.batch_rows);
  require<ConfigError>(options.batch_rows >= options.ranks, "data",
                       "expected a batch of at least one row for each of {} ranks; got {}",
                       options.ranks, options.batch_rows);
  double total = 0;
  for (const CorpusSource& source : corpus_->sources()) {
    require<InputError>(
        source.train_tokens >= options.sequence_length, "data",
        "expected at least one sequence of {} tokens in source '{}'; got {} training tokens in {} "
        "documents; add text or lower the sequence length",
        options.sequence_length, source.name, source.train_tokens, source.train.size());
    total += source.weight;
  }
  for (const CorpusSource& source : corpus_->sources()) shares_.push_back(source.weight / total);
  epochs_.resize(shares_.size());
  state_ = {.corpus = corpus_->fingerprint(),
            .sequence_length = options.sequence_length,
            .seed = options.seed,
            .batches = 0,
            .rows = std::vector<int64_t>(shares_.size(), 0)};
}

BatchStream::~BatchStream() = default;

int64_t BatchStream::rows_per_epoch(size_t source) const {
  const int64_t tokens = corpus_->sources()[source].train_tokens;
  return (tokens + options_.sequence_length - 1) / options_.sequence_length;
}

// The source furthest behind its share of the rows; the first of equals. A function of how many
// rows there were before.
size_t BatchStream::next_source() const {
  const auto rows =
      static_cast<double>(std::accumulate(state_.rows.begin(), state_.rows.end(), int64_t{1}));
  size_t best = 0;
  double most = -1e300;
  for (size_t i = 0; i < shares_.size(); ++i) {
    const double behind = shares_[i] * rows - static_cast<double>(state_.rows[i]);
    if (behind > most) {
      most = behind;
      best = i;
    }
  }
  return best;
}

void BatchStream::fill_row(size_t source, int64_t row, Batch& batch, int64_t at) {
  const int64_t number = row / rows_per_epoch(source);
  std::unique_ptr<PackedEpoch>& epoch = epochs_[source];
  if (epoch == nullptr || epoch->number() != number) {
    epoch = std::make_unique<PackedEpoch>(*corpus_, source, number, options_);
  }
  epoch->read_row(row % rows_per_epoch(source), batch, at);
  batch.sources[static_cast<size_t>(at)] = static_cast<int32_t>(source);
}

Batch BatchStream::next() {
  const int64_t first = options_.batch_rows * options_.rank / options_.ranks,
                end = options_.batch_rows * (options_.rank + 1) / options_.ranks;
  Batch batch = empty_batch(end - first, options_.sequence_length);
  for (int64_t row = 0; row < options_.batch_rows; ++row) {
    const size_t source = next_source();
    if (row >= first && row < end) fill_row(source, state_.rows[source], batch, row - first);
    ++state_.rows[source];
  }
  ++state_.batches;
  return batch;
}

void BatchStream::restore(const LoaderState& state) {
  constexpr std::string_view kRemedy =
      "resume with the text and recipe of the run, or start a new run";
  require<CheckpointError>(state.corpus == state_.corpus, "loader",
                           "expected corpus {}; got {}: the text, its split, "
                           "its weights or the tokenizer changed; {}",
                           state.corpus, state_.corpus, kRemedy);
  require<CheckpointError>(
      state.sequence_length == state_.sequence_length && state.seed == state_.seed, "loader",
      "expected sequence length {} and seed {}; got {} and {}; {}", state.sequence_length,
      state.seed, state_.sequence_length, state_.seed, kRemedy);
  const bool fits =
      state.rows.size() == state_.rows.size() && state.batches >= 0 &&
      std::all_of(state.rows.begin(), state.rows.end(), [](int64_t rows) { return rows >= 0; });
  require<CheckpointError>(fits, "loader",
                           "expected row counts of {} sources; got {}; the checkpoint is damaged",
                           state_.rows.size(), state.to_json().dump());
  state_ = state;
}

ValidationSet validation_batches(const Corpus& corpus, size_t source, int64_t sequence_length,
                                 int64_t batch_rows, int64_t max_tokens) {
  require_sizes(sequence_length, batch_rows);
  const CorpusSource& from = corpus.sources().at(source);
  const PackedDocuments documents(from.validation, in_order(from.validation.size()), from.store,
                                  corpus.tokenizer(), sequence_length, from.scored_tail);
  const int64_t rows =
      std::min(documents.rows(), std::max<int64_t>(1, max_tokens / sequence_length));
  ValidationSet set{.source = from.name,
                    .batches = {},
                    .targets = 0,
                    .bytes = 0,
                    .answers = from.scored_tail > 0};
  for (int64_t i = 0; i < rows; ++i) {
    if (i % batch_rows == 0) {
      set.batches.push_back(empty_batch(std::min(batch_rows, rows - i), sequence_length));
    }
    const int64_t row = i * documents.rows() / rows;  // spread over all of the text
    documents.read_row(row, EndMarks::not_scored, set.batches.back(), i % batch_rows);
    set.batches.back().sources[static_cast<size_t>(i % batch_rows)] = static_cast<int32_t>(source);
  }
  for (const Batch& batch : set.batches) {
    set.targets += batch.targets_counted();
    set.bytes += bytes_of_targets(batch, corpus.tokenizer());
  }
  return set;
}

int64_t bytes_of_targets(const Batch& batch, const Tokenizer& tokenizer) {
  int64_t bytes = 0;
  for (const int32_t target : batch.targets) {
    if (target >= 0) bytes += tokenizer.bytes_of(target);
  }
  return bytes;
}

}  // namespace fovea
