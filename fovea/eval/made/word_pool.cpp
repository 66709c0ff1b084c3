// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/word_pool.h"

#include "fovea/eval/made/english_words.h"

namespace fovea {

WordPool::WordPool(Rng rng) : rng_(rng) {
  std::set<std::string_view> all;
  for (const auto list : {english_adjectives(), english_nouns(), english_verbs()})
    all.insert(list.begin(), list.end());
  words_.assign(all.begin(), all.end());
  shuffle(rng_, words_);
}

std::vector<std::string> WordPool::get(int64_t begin, int64_t count) {
  while (std::ssize(words_) < begin + count) words_.push_back(pairs_(rng_));
  return {words_.begin() + begin, words_.begin() + begin + count};
}

}  // namespace fovea
