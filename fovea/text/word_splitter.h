// Splits text into the words inside which a model of tokens works (pre-tokenisation).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/text/pattern.h"

namespace fovea {

/// GPT-2's pattern, which tokenizer.json calls ByteLevel with use_regex.
extern const std::string_view kGpt2Pattern;

class WordSplitter {
 public:
  struct Rule {
    /// `isolate`: matches and the text between them are words. `matches`: the text between is
    /// dropped. `between`: matches are dropped. `with_previous`: a match ends the word before it.
    enum class Keep { isolate, matches, between, with_previous };
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
  struct Compiled {
    Pattern pattern;
    Rule::Keep keep;
  };
  void apply(size_t rule, std::string_view text, const Word& word) const;
  std::vector<Compiled> rules_;
};

}  // namespace fovea
