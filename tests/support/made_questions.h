// Helpers for tests of made questions: a small text, and where things stand in a prompt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "fovea/eval/made/sample.h"
#include "fovea/text/tokenizer.h"

namespace fovea::testing {

inline MadeSample sample_of(int64_t length, int64_t number = 0, uint64_t seed = 7) {
  return {.tokenizer = *byte_tokenizer(), .length = length, .number = number, .seed = seed};
}

inline int64_t occurrences(std::string_view text, std::string_view part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

/// What stands between two parts of a text; a failure where they are not there.
inline std::string between(const std::string& text, std::string_view open, std::string_view close) {
  const size_t begin = text.find(open);
  const size_t end = begin == std::string::npos ? begin : text.find(close, begin + open.size());
  EXPECT_NE(end, std::string::npos) << "no '" << open << "' ... '" << close << "' in " << text;
  if (end == std::string::npos) return "";
  return text.substr(begin + open.size(), end - begin - open.size());
}

/// A prompt with room for the answer is at most `length` tokens, and `unit` tokens more would not
/// have fitted.
inline void expect_full(const std::string& prompt, int64_t length, int64_t answer, int64_t unit) {
  const int64_t tokens = count_tokens(*byte_tokenizer(), prompt) + answer;
  EXPECT_LE(tokens, length);
  EXPECT_GT(tokens + unit, length);
}

}  // namespace fovea::testing
