// Counting words (RULER "cwe" and "fwe", spec 9.4, E-6): the common words of a list, the frequent
// words of a coded text.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/eval/made/sample.h"
#include "fovea/eval/task_item.h"

namespace fovea {

inline constexpr int64_t kCommonAnswerTokens = 120, kFrequentAnswerTokens = 50;

/// How often each word of a list of common words comes.
struct CommonWords {
  int64_t words = 10, repeats = 30, other_repeats = 3;
};
/// 30 and 3 times; 6 and 1 in prompts below 4096 tokens.
CommonWords common_words_of(int64_t length);

/// CWE: a numbered list in which ten words come more often; one solved list stands first.
/// References: the ten words. Axes: "length".
TaskItem common_words_question(const MadeSample& sample);

/// Counts of the words in a coded text of `n` words: word k = 1, 2 ... comes floor(n k^-alpha /
/// zeta(alpha)) times, alpha = 2. Words that come 0 times are left out; `vocabulary` words at most.
std::vector<int64_t> frequent_word_counts(int64_t n, int64_t vocabulary);

/// FWE: coded words of six letters, length / 50 of them; the most frequent one is noise, "...".
/// References: the next three. Axes: "length".
TaskItem frequent_words_question(const MadeSample& sample);

}  // namespace fovea
