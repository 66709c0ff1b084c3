// Batch: rows of packed tokens, and the position of a reader of batches.
//
// A row is a window of a stream of documents, BOS + tokens + EOS each (spec 9.10). It may hold the
// end of one document, whole ones, and the beginning of another: `documents` says which tokens may
// see each other.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fovea {

/// Shapes [rows * length], row after row.
struct Batch {
  int64_t rows = 0, length = 0;
  std::vector<int32_t> tokens;     // inputs
  std::vector<int32_t> targets;    // the next token of the same document; -1 = no loss
  std::vector<int32_t> documents;  // index of the document within the row, from 0, never falling
  std::vector<int32_t> positions;  // within the part of the document that is in this row, from 0
  std::vector<int32_t> sources;    // [rows]: which source of the corpus

  /// Number of targets that count.
  int64_t targets_counted() const;
};

/// Where a reader stands: which corpus and stream, and how many rows of each source were handed
/// out to all ranks. Order of documents and rows are functions of seed, source, epoch and row.
struct LoaderState {
  std::string corpus;  // Corpus::fingerprint()
  int64_t sequence_length = 0;
  uint64_t seed = 0;
  int64_t batches = 0;        // handed out
  std::vector<int64_t> rows;  // handed out, per source, over all epochs

  bool operator==(const LoaderState&) const = default;
  nlohmann::ordered_json to_json() const;
  /// CheckpointError where a key is missing or of another type.
  static LoaderState from_json(const nlohmann::ordered_json& json);
};

/// Anything that yields training batches without end.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual Batch next() = 0;
  /// The state after the last batch that next() returned.
  virtual LoaderState state() const = 0;
  /// Continues exactly where `state` was taken. CheckpointError where it belongs to another corpus,
  /// length or seed.
  virtual void restore(const LoaderState& state) = 0;
};

}  // namespace fovea
