// Splits text into the words inside which a byte-pair encoding merges (pre-tokenisation).
//
// Patterns are regular expressions in the dialect that tokenizer.json files use, run by PCRE2.
// Letters, numbers and marks are those of Unicode 16, whatever version PCRE2 was built with; \s is
// White_Space.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// GPT-2's pattern, which tokenizer.json calls ByteLevel with use_regex.
extern const std::string_view kGpt2Pattern;

class WordSplitter {
 public:
  struct Rule {
    /// `isolate`: matches and what stands between them are words; `matches`: what stands between is
    /// dropped.
    enum class Keep { isolate, matches };
    std::string pattern;
    Keep keep = Keep::isolate;
  };

  /// Each rule splits the words of the one before. InputError for a pattern that PCRE2 does not
  /// take.
  explicit WordSplitter(const std::vector<Rule>& rules);

  /// Calls `word` for every word in order. Bytes that are not UTF-8 are words of their own. Safe
  /// from several threads.
  using Word = std::function<void(std::string_view)>;
  void split(std::string_view text, const Word& word) const;

 private:
  struct Compiled;
  void apply(size_t rule, std::string_view text, const Word& word) const;
  std::vector<std::shared_ptr<const Compiled>> rules_;
};

}  // namespace fovea
