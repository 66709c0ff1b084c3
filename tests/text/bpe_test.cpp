// Byte-pair encoding and its training against definitions written out slowly.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "fovea/base/rng.h"
#include "fovea/text/bpe_trainer.h"
#include "tests/support/expect_error.h"

namespace fovea::bpe_test {
namespace {

using Merges = BpeTrainer::Merges;

std::string random_text(uint64_t seed, size_t size, std::string_view alphabet) {
  Rng rng(seed);
  std::string text;
  for (size_t i = 0; i < size; ++i) text += alphabet[rng.below(alphabet.size())];
  return text;
}

/// The definition: apply the merges one by one over the whole word, in their order of rank, again
/// and again.
std::vector<std::string> encode_slowly(const Merges& merges, const std::string& word) {
  std::vector<std::string> parts;
  for (const char byte : word) parts.emplace_back(1, byte);
  for (;;) {
    size_t best = merges.size(), place = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto rank = static_cast<size_t>(
          std::ranges::find(merges, std::pair{parts[i], parts[i + 1]}) - merges.begin());
      if (rank < best) best = rank, place = i;
    }
    if (best == merges.size()) return parts;
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

/// The definition: count all pairs of all words anew for every merge.
Merges train_slowly(const std::vector<std::string>& words, int64_t count) {
  std::vector<std::vector<std::string>> split;
  for (const std::string& word : words) {
    split.emplace_back();
    for (const char byte : word) split.back().emplace_back(1, byte);
  }
  Merges merges;
  while (static_cast<int64_t>(merges.size()) < count) {
    std::map<std::pair<std::string, std::string>, int64_t> counts;
    for (const auto& word : split)
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    auto best = counts.begin();
    for (auto it = counts.begin(); it != counts.end(); ++it)
      if (it->second >= best->second) best = it;  // of equals the greater pair: the map is sorted
    if (counts.empty() || best->second < 2) return merges;
    merges.push_back(best->first);
    for (auto& word : split) {
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        if (std::pair{word[i], word[i + 1]} != best->first) continue;
        word[i] += word[i + 1];
        word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  return merges;
}

TEST(BpeTrainer, EveryMergeIsThePairThatStandsMostOften) {
  for (const uint64_t seed : {1, 2, 3}) {
    std::vector<std::string> words;
    BpeTrainer trainer;
    for (uint64_t i = 0; i < 60; ++i) {
      words.push_back(random_text(100 * seed + i, 1 + i % 17, "aabc"));
      trainer.add(words.back());
    }
    EXPECT_EQ(trainer.train(40), train_slowly(words, 40)) << seed;
  }
}

TEST(BpeTrainer, StopsWhereNoPairStandsTwice) {
  BpeTrainer trainer;
  trainer.add("ab ab");
  // " ab" stands once, "ab" once: a+b twice, then nothing.
  EXPECT_EQ(trainer.train(10), (Merges{{"a", "b"}}));
}

TEST(BpeTrainer, PartsThatEndAnywhereGiveTheMergesOfTheWhole) {
  const std::string text = random_text(9, 3000, "ab c\nd'\n ");
  BpeTrainer whole, parts;
  whole.add(text);
  std::string waiting;
  for (size_t i = 0; i < text.size(); i += 7) {
    waiting += text.substr(i, 7);
    waiting.erase(0, parts.add_prefix(waiting));
  }
  parts.add(waiting);
  EXPECT_EQ(parts.words(), whole.words());
  EXPECT_EQ(parts.train(50), whole.train(50));
}

void expect_the_definition(const Merges& merges) {
  const auto tokenizer = make_bpe_tokenizer(merges);
  for (size_t size = 1; size < 600;
       size = size * 3 / 2 + 1) {  // the border between the two ways is 64
    const std::string word = random_text(size, size, "aaabbc");
    std::vector<std::string> pieces;
    for (const int32_t token : tokenizer->encode(word))
      pieces.emplace_back(tokenizer->piece(token));
    EXPECT_EQ(pieces, encode_slowly(merges, word)) << size;
  }
}

TEST(Bpe, ShortAndLongWordsFollowTheDefinition) {
  BpeTrainer trainer;
  trainer.add(random_text(5, 4000, "aaabbc"));
  const Merges merges = trainer.train(60);
  ASSERT_EQ(merges.size(), 60U);
  expect_the_definition(merges);
}

// No training gives such a list, but a file may: a merge makes pairs that go before what is under
// way.
TEST(Bpe, MergesWhosePartsComeLaterInTheListFollowTheDefinitionToo) {
  BpeTrainer trainer;
  trainer.add(random_text(5, 4000, "aaabbc"));
  Merges merges = trainer.train(60);
  std::ranges::reverse(merges);
  expect_the_definition(merges);
  Rng rng(9);
  for (size_t i = merges.size(); i > 1; --i) std::swap(merges[i - 1], merges[rng.below(i)]);
  expect_the_definition(merges);
}

// Files may give several merges one rank; the leftmost goes first, and time stays that of a sort.
TEST(Bpe, MergesOfOneRankGoFromLeftToRightHoweverLongTheWord) {
  std::vector<std::string> pieces{"a", "aa", "aaa", "aaaa"};
  std::vector<BpeMerge> merges{{0, 0, 1, 0}, {1, 1, 3, 0}, {1, 0, 2, 0}};
  const Bpe bpe(pieces, merges, {});
  for (const size_t size : {10UL, 400'000UL}) {  // the short and the long way
    std::vector<int32_t> tokens;
    bpe.encode(std::string(size, 'a'), tokens);
    std::vector<int32_t> expected(size / 3, 2);
    if (size % 3 != 0) expected.push_back(0);
    EXPECT_EQ(tokens, expected);
  }
}

TEST(Bpe, WholeWordsWinOverMergesOnlyOnRequest) {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte) pieces.emplace_back(1, static_cast<char>(byte));
  pieces.emplace_back("ab");
  pieces.emplace_back("abc");  // no merge leads to it
  for (const bool whole : {false, true}) {
    const Bpe bpe(pieces, {{'a', 'b', 256}}, {.whole_words = whole});
    std::vector<int32_t> tokens;
    bpe.encode("abc", tokens);
    EXPECT_EQ(tokens, whole ? std::vector<int32_t>{257} : (std::vector<int32_t>{256, 'c'}));
  }
}

TEST(Bpe, BytesWithoutATokenVanishOrBecomeTheUnknownToken) {
  const auto encode = [](UnknownUnit unknown) {
    std::vector<int32_t> tokens;
    Bpe({"a", "b", "ab", ""}, {{0, 1, 2}}, {.unknown = unknown}).encode("a??b?\xFF", tokens);
    return tokens;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(encode({}), Ids{2}) << "neighbours merge";
  EXPECT_EQ(encode({.token = 3}), (Ids{0, 3, 3, 1, 3, 3, 3, 3})) << "0xFF stands for U+FFFD";
  EXPECT_EQ(encode({.token = 3, .fused = true}), (Ids{0, 3, 1, 3}));
}

}  // namespace
}  // namespace fovea::bpe_test
