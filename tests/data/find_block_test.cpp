// The block task: lines that can be answered in one way, whole blocks, the same line for the same
// number (spec 3.8, M-12); scored tails of documents.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/find_block.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "fovea/base/files.h"
#include "fovea/data/batch_stream.h"
#include "fovea/text/tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::find_block_test {
namespace {

using namespace fovea::testing;

struct Parts {
  std::vector<std::string> blocks;
  std::string query, answer;
};

Parts parts_of(const std::string& line, int64_t) {
  Parts parts;
  const size_t mark = line.find('#');
  std::istringstream blocks(line.substr(0, mark));
  for (std::string block; std::getline(blocks, block, '.');) parts.blocks.push_back(block);
  parts.query = line.substr(mark + 1, 2);
  parts.answer = line.substr(mark + 3);
  return parts;
}

TEST(FindBlock, EveryLineHasWholeBlocksAndOneAnswer) {
  for (const int64_t letters : {5, 8}) {
    const FindBlock settings{.letters = letters};
    EXPECT_EQ(settings.blocks(), letters == 5 ? 52 : 34);
    std::set<std::string> lines;
    for (int64_t n = 0; n < 50; ++n) {
      const std::string line = find_block_line(settings, n);
      const Parts parts = parts_of(line, letters);
      ASSERT_EQ(std::ssize(parts.blocks), settings.blocks());
      EXPECT_LE(std::ssize(line), 319);
      EXPECT_EQ(std::ssize(line), std::ssize(find_block_line(settings, n + 1)));
      int64_t matching = 0;
      for (const std::string& block : parts.blocks) {
        EXPECT_EQ(std::set<char>(block.begin(), block.end()).size(), static_cast<size_t>(letters));
        EXPECT_EQ(std::ssize(block), letters);
        if (block.find(parts.query[0]) != std::string::npos &&
            block.find(parts.query[1]) != std::string::npos) {
          ++matching;
          EXPECT_EQ(block, parts.answer);
        }
      }
      EXPECT_EQ(matching, 1);
      EXPECT_NE(parts.query[0], parts.query[1]);
      lines.insert(line);
    }
    EXPECT_EQ(lines.size(), 50u);
    EXPECT_EQ(find_block_line(settings, 7), find_block_line(settings, 7));
  }
}

TEST(FindBlock, AnswersMayBeTheFirstOrLastLetter) {
  for (const auto answer : {FindBlock::Answer::first, FindBlock::Answer::last}) {
    const FindBlock settings{.letters = 4, .answer = answer, .line_length = 60};
    const std::string line = find_block_line(settings, 3);
    const Parts whole = parts_of(find_block_line({.letters = 4, .line_length = 60}, 3), 4);
    const char expected =
        answer == FindBlock::Answer::first ? whole.answer.front() : whole.answer.back();
    EXPECT_EQ(parts_of(line, 4).answer, std::string(1, expected));
  }
}

TEST(FindBlock, SettingsAreReadFromTheSourcePath) {
  const FindBlock s =
      parse_find_block("find-the-block:letters=3,answer=last,lines=7,length=40,seed=9");
  EXPECT_EQ(s.letters, 3);
  EXPECT_EQ(s.answer, FindBlock::Answer::last);
  EXPECT_EQ(s.lines, 7);
  EXPECT_EQ(s.line_length, 40);
  EXPECT_EQ(s.seed, 9u);
  EXPECT_EQ(parse_find_block("find-the-block").letters, 5);
  EXPECT_ERROR(ConfigError, parse_find_block("find-the-block:letter=3"), "letter", "letters");
  EXPECT_ERROR(ConfigError, parse_find_block("find-the-block:letters=14"), "14");
  EXPECT_ERROR(ConfigError, parse_find_block("find-the-block:letters=x"), "letters", "x");
  EXPECT_ERROR(ConfigError, parse_find_block("find-the-block:answer=middle"), "middle", "first");
  EXPECT_ERROR(ConfigError, parse_find_block("find-the-block:length=9"), "length", "9");
}

// Only the answer and the end mark are learned; validation scores the answer alone.
TEST(FindBlock, ScoredTailsLeaveTheAnswersAsTargets) {
  const TemporaryFolder folder;
  DataConfig config;
  config.sources = {{.path = "find-the-block:letters=3,lines=200,length=30", .scored_tail = 3}};
  config.validation_fraction = 0.2;  // some 40 lines: more than are asked for
  config.cache = folder.path().string();
  const auto corpus = prepare_corpus(config, byte_tokenizer());
  const int64_t length = corpus->sources()[0].train[0].length + corpus->marks();
  BatchStream stream(corpus, {.sequence_length = length, .batch_rows = 4});
  const Batch batch = stream.next();
  EXPECT_EQ(batch.targets_counted(), 4 * (3 + 1));
  const ValidationSet set = validation_batches(*corpus, 0, length, 4, 10 * length);
  EXPECT_TRUE(set.answers);
  EXPECT_EQ(set.targets, 10 * 3);
  for (const Batch& rows : set.batches) {
    for (int64_t row = 0; row < rows.rows; ++row) {
      std::string answer;
      for (int64_t i = 0; i < length; ++i) {
        const int32_t target = rows.targets[static_cast<size_t>(row * length + i)];
        if (target >= 0) answer += corpus->tokenizer().piece(target);
      }
      EXPECT_EQ(answer.size(), 3u);
    }
  }
}

}  // namespace
}  // namespace fovea::find_block_test
