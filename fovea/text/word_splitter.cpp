// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/word_splitter.h"

#include "fovea/text/utf8.h"

namespace fovea {

const std::string_view kGpt2Pattern =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

WordSplitter::WordSplitter(const std::vector<Rule>& rules) {
  for (const Rule& rule : rules) rules_.push_back({Pattern(rule.pattern), rule.keep});
}

void WordSplitter::split(std::string_view text, const Word& word) const {
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix(text);
    if (valid > 0) apply(0, text.substr(0, valid), word);
    text.remove_prefix(valid);
    if (text.empty()) return;
    const size_t bad = utf8_step(text).size;
    word(text.substr(0, bad));
    text.remove_prefix(bad);
  }
}

// `text` is valid UTF-8 and not empty.
void WordSplitter::apply(size_t rule, std::string_view text, const Word& word) const {
  if (rule == rules_.size()) {
    word(text);
    return;
  }
  const Compiled& compiled = rules_[rule];
  const auto deeper = [&](size_t begin, size_t end) {
    if (begin < end) apply(rule + 1, text.substr(begin, end - begin), word);
  };
  Pattern::Search search(compiled.pattern, text);
  size_t done = 0;
  while (const auto match = search.next()) {
    switch (compiled.keep) {
      case Rule::Keep::isolate:
        deeper(done, match->begin);
        deeper(match->begin, match->end);
        break;
      case Rule::Keep::matches:
        deeper(match->begin, match->end);
        break;
      case Rule::Keep::between:
        deeper(done, match->begin);
        break;
      case Rule::Keep::with_previous:
        deeper(done, match->end);
        break;
    }
    done = match->end;
  }
  if (compiled.keep != Rule::Keep::matches) deeper(done, text.size());
}

}  // namespace fovea
