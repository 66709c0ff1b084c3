// Regular expressions in the dialect that tokenizer.json files use, run by PCRE2.
//
// Letters, numbers and marks are those of Unicode 16, whatever version PCRE2 was built with; \s is
// White_Space.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

class Pattern {
 public:
  /// InputError for a pattern that PCRE2 does not take.
  explicit Pattern(std::string_view pattern);

  struct Match {
    size_t begin = 0, end = 0;
  };
  /// Finds the matches of one text, which is valid UTF-8, from left to right.
  class Search {
   public:
    Search(const Pattern& pattern, std::string_view text);
    /// The next match that is not empty.
    std::optional<Match> next();
    /// The groups in brackets of the last match, from 1: nothing for one that took no part in it.
    std::vector<std::optional<Match>> groups() const;

   private:
    std::shared_ptr<const void> code_;
    std::shared_ptr<void> data_;
    std::string_view text_;
    size_t from_ = 0;
    int found_ = 0;  // what pcre2_match returned
  };

 private:
  std::shared_ptr<const void> code_;  // pcre2_code
};

/// The pattern that matches exactly `text`.
std::string quoted_pattern(std::string_view text);

}  // namespace fovea
