// Retention: predictions of hard Focus for every number of groups a token (spec 11.7, U-26).
//
// Beside them stand a window with sinks and a strided mask that keep as many pairs, and groups at
// random or by a hash, which keep fewer pairs. Plain perplexity rewards nearness; the copy score is
// where distant pairs matter most.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "fovea/eval/scoring.h"
#include "fovea/kernels/common/mask_rule.h"

namespace fovea {

struct RetentionOptions {
  ScoreOptions score;
  int64_t sinks = -1;  ///< below 0 = the model's own
  int64_t copy = 0;    ///< tokens of the copy score; 0 = none
  int64_t copy_windows = 16;
  int64_t most_top_k = 0;  ///< rows for 1 ... this many groups a token; 0 = all
};

/// One way to attend.
struct RetentionScore {
  double pairs = 1.0;       ///< share of causal pairs kept, mean over layers with Focus
  double distant = 1.0;     ///< share of those beyond window and sinks
  double perplexity = 0.0;  ///< per token
  double copy = 0.0;        ///< perplexity of the second copy; 0 = not measured
};

struct RetentionRow {
  int64_t top_k = 0;
  bool full = false;  ///< 2k > K: any two tokens meet, so this is full attention (U-13)
  RetentionScore trained;
  RetentionScore windowed, strided, random, hashed;  ///< not measured where `full`
  int64_t window = 0;  ///< W of `windowed`: the least that keeps as many
  int64_t stride = 0;  ///< of `strided`, beside the local window and sinks: the nearest in pairs
};

struct RetentionResult {
  ScoreOptions options;  ///< resolved
  int64_t groups = 0, local_window = 0, sinks = 0;
  RetentionScore full, soft;  ///< without Focus; with the gate that was trained
  std::vector<RetentionRow> rows;

  nlohmann::ordered_json to_json() const;
};

/// Share of the causal pairs of `tokens` tokens that a window of `window` and `sinks` keep.
double window_pairs(int64_t tokens, int64_t window, int64_t sinks);
/// The smallest window that keeps at least `pairs` of them.
int64_t window_of_pairs(int64_t tokens, double pairs, int64_t sinks);

/// Share that the rule of a mask keeps.
double masked_share(int64_t tokens, const MaskRule& rule);
/// The stride, at most 512, that beside a local window and sinks keeps the share nearest to
/// `pairs`; the first of equal ones.
int64_t stride_of_pairs(int64_t tokens, double pairs, int64_t window, int64_t sinks);

/// Rows for 1 ... K groups a token, or `most_top_k`. `progress(label, done, total)` in documents;
/// it may throw. UnsupportedError for a model without Focus. The model's compute options are as
/// before afterwards.
RetentionResult measure_retention(
    Transformer& model, const Tokenizer& tokenizer, std::span<const ScoreDocument> documents,
    const RetentionOptions& options,
    const std::function<void(std::string_view, int64_t, int64_t)>& progress = {});

}  // namespace fovea
