// ROUGE-N and ROUGE-L.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/rouge.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "fovea/base/error.h"

namespace fovea {
namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text) {
    const bool upper = c >= 'A' && c <= 'Z';
    if (upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      word += upper ? static_cast<char>(c - 'A' + 'a') : c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

RougeScore share(int64_t common, int64_t reference, int64_t summary) {
  if (reference <= 0 || summary <= 0) return {};
  return {.precision = static_cast<double>(common) / static_cast<double>(summary),
          .recall = static_cast<double>(common) / static_cast<double>(reference)};
}

std::map<std::vector<std::string>, int64_t> runs_of(const std::vector<std::string>& words,
                                                    int64_t n) {
  std::map<std::vector<std::string>, int64_t> runs;
  for (int64_t i = 0; i + n <= std::ssize(words); ++i)
    ++runs[{words.begin() + i, words.begin() + i + n}];
  return runs;
}

}  // namespace

RougeScore rouge_n(std::string_view reference, std::string_view summary, int64_t n) {
  require<ConfigError>(n >= 1, "rouge", "runs must have a word at least; got {}", n);
  const std::vector<std::string> a = words_of(reference), b = words_of(summary);
  const auto wanted = runs_of(a, n), written = runs_of(b, n);
  int64_t common = 0;
  for (const auto& [run, count] : wanted) {
    const auto found = written.find(run);
    if (found != written.end()) common += std::min(count, found->second);
  }
  return share(common, std::ssize(a) - n + 1, std::ssize(b) - n + 1);
}

RougeScore rouge_l(std::string_view reference, std::string_view summary) {
  const std::vector<std::string> a = words_of(reference), b = words_of(summary);
  std::vector<int64_t> row(b.size() + 1, 0);
  for (const std::string& word : a) {
    int64_t diagonal = 0;  // of the row before, one to the left
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t above = row[j];
      row[j] = word == b[j - 1] ? diagonal + 1 : std::max(above, row[j - 1]);
      diagonal = above;
    }
  }
  return share(row.back(), std::ssize(a), std::ssize(b));
}

}  // namespace fovea
