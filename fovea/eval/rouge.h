// ROUGE (Lin, 2004): how much of a reference text a summary has, in words.
//
// As the rouge_score package of Google Research without stemming: lower case, words are runs of
// ASCII letters and digits.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace fovea {

struct RougeScore {
  double precision = 0.0, recall = 0.0;

  double f1() const {
    return precision + recall > 0.0 ? 2.0 * precision * recall / (precision + recall) : 0.0;
  }
};

/// Overlap of runs of n words, each counted as often as in both. Zero where a text has fewer words.
/// ConfigError for n < 1.
RougeScore rouge_n(std::string_view reference, std::string_view summary, int64_t n);

/// The longest common subsequence of words.
RougeScore rouge_l(std::string_view reference, std::string_view summary);

}  // namespace fovea
