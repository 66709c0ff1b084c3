// One sample of a made task: its place in the set, its own random numbers, and its size.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "fovea/base/rng.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

/// Same fields, same bytes. Samples of one number have the same needles at every length, so that
/// lengths are compared on paired questions.
struct MadeSample {
  const Tokenizer& tokenizer;
  int64_t length = 1024;  ///< tokens that the prompt and the room for the answer may take
  int64_t number = 0;
  uint64_t seed = 0;
  /// Where the thing asked stands, 0 = at the start ... 1 = at the end; none = the task's own rule.
  std::optional<double> depth = std::nullopt;
};

/// Random numbers of this sample in this task alone.
Rng random_numbers(const MadeSample& sample, std::string_view task);

/// ConfigError, named after the task, for a length below 1, a number below 0 or a depth outside
/// 0 ... 1.
void check_sample(const MadeSample& sample, std::string_view task);

/// Tokens of a text with the mark of its beginning, where the tokenizer has one.
int64_t count_tokens(const Tokenizer& tokenizer, std::string_view text);

struct SizedPrompt {
  std::string text;
  int64_t units = 0;   ///< of the haystack: words, sentences, pairs, shots
  int64_t tokens = 0;  ///< count_tokens() of the text
};

/// The prompt that `build` makes of as many units as fit: one more would need more than
/// `sample.length` tokens together with `answer_tokens`. Search by interpolation between counts,
/// five to ten prompts whatever the length. ConfigError where `least` units are too many.
SizedPrompt largest_prompt(const MadeSample& sample, std::string_view task, int64_t answer_tokens,
                           int64_t least, int64_t most,
                           const std::function<std::string(int64_t units)>& build);

}  // namespace fovea
