// Quality of a model's own text without a judge: variety, repetition, perplexity, and agreement
// with another model.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "fovea/infer/generate.h"
#include "fovea/nn/transformer.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

/// Different n-grams over all n-grams of the texts together (Li et al., 2016); 0 without any.
double distinct_share(std::span<const std::vector<int32_t>> texts, int64_t n);
/// Mean over texts of 1 - different / all n-grams within the text (Welleck et al., 2020:
/// seq-rep-n).
double repeated_share(std::span<const std::vector<int32_t>> texts, int64_t n);

struct TextQualityOptions {
  /// Another model over the same tokens, of which agreement is asked; null = none.
  const Transformer* base = nullptr;
  std::function<void(int64_t done, int64_t total)> progress;  ///< in texts; may throw
  const std::atomic<bool>* interrupt = nullptr;
};

struct TextQuality {
  int64_t texts = 0, tokens = 0;
  double distinct[3] = {0, 0, 0};  ///< of 1-, 2- and 3-grams
  double repetition = 0.0;         ///< of 4-grams
  double self_perplexity = 0.0;    ///< of the written tokens, under the model itself
  /// Share of the written tokens that the base model would have written greedily; below 0 = not
  /// asked.
  double agreement = -1.0;
  double base_perplexity = 0.0;  ///< of the written tokens, under the base model

  nlohmann::ordered_json to_json() const;
};

/// Answers every request and measures what is written. InputError where nothing is written or a
/// prompt does not fit; Interrupted.
TextQuality measure_text_quality(const Transformer& model, const Tokenizer& tokenizer,
                                 std::span<const TextRequest> requests,
                                 const TextQualityOptions& options);

}  // namespace fovea
