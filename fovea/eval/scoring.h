// Scoring text with a model: rolling log-likelihood in windows (spec 9.3).
//
// Every token of a document is predicted once. Windows hold `window` inputs and move by `stride`.
// Disjoint ones (stride = window) have one token of context each; overlapping ones score the last
// `stride` targets of each. The first input is BOS (or EOS, where there is no BOS). Natural
// logarithms.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fovea/nn/transformer.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

struct ScoreOptions {
  int64_t window = 0;  ///< inputs of a window; 0 = the model's trained context
  int64_t stride = 0;  ///< targets scored by a window after the first; 0 = window
  int64_t rows = 8;    ///< windows at a time

  /// Fills the zeros; ConfigError for stride > window and values below 1.
  ScoreOptions resolved(const ModelConfig& config) const;
};

struct ScoreDocument {
  std::string source;
  std::string text;
};

struct ScoreTotals {
  double nll = 0;  ///< nats
  int64_t documents = 0, tokens = 0, bytes = 0, words = 0;

  double token_perplexity() const;
  double byte_perplexity() const;
  double word_perplexity() const;  ///< words = pieces of split(whitespace)
  double bits_per_byte() const;
  void add(const ScoreTotals& other);
};

/// Targets whose input stands at positions [from, to) of its window.
struct PositionBucket {
  int64_t from = 0, to = 0;
  double nll = 0;
  int64_t tokens = 0;
};

/// The score of one window.
struct WindowScore {
  double nll = 0;  ///< nats
  int64_t tokens = 0;
};

struct ScoreResult {
  ScoreOptions options;
  ScoreTotals total;
  std::vector<std::pair<std::string, ScoreTotals>> sources;  ///< in order of first appearance
  double pairs_kept = 1.0, distant_kept = 1.0;  ///< by the hard rule of Focus, mean over layers
  /// Layers that choose keys by content (MagicPIG, routing): the share of the pairs that their rows
  /// read, and the keys that the last row of a longest window reads. Nothing where no path counts
  /// them.
  std::optional<double> pairs_read, last_keys_read;
  double tiles_visited = 1.0;      ///< of those that a causal mask has; without grouped plans 1
  std::vector<std::string> plans;  ///< of the layers with Focus, in the last batch
  std::vector<WindowScore> windows;
  std::vector<PositionBucket> positions;  ///< [0, 1), [1, 2), [2, 4), ... up to the window

  nlohmann::ordered_json to_json() const;
};

/// InputError where no document holds a token. `progress(done, total)` in bytes of the text, before
/// every window; it may throw.
ScoreResult score_text(const Transformer& model, const Tokenizer& tokenizer,
                       std::span<const ScoreDocument> documents, const ScoreOptions& options = {},
                       const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace fovea
