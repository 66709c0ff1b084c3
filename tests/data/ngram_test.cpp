// Byte n-gram models are distributions, and know what they counted.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/ngram.h"

#include <cmath>

#include "tests/data/data_fixture.h"

namespace fovea::ngram_test {
namespace {

class NgramTest : public DataTest {};

TEST_F(NgramTest, ProbabilitiesSumToOneForEveryContext) {
  ByteNgrams ngrams;
  ngrams.add("the cat sat on the mat\n");
  ngrams.add("the dog\n");
  for (int order = 1; order <= 3; ++order) {
    for (const std::string context : {"", "t", "th", "zq", "at"}) {
      for (const bool at_start : {false, true}) {
        double sum = 0;
        for (int byte = 0; byte < 256; ++byte) {
          sum += std::exp(
              ngrams.log_probability(order, context, at_start, static_cast<uint8_t>(byte)));
        }
        EXPECT_NEAR(sum, 1.0, 1e-12) << order << context;
      }
    }
  }
}

TEST_F(NgramTest, EqualsWittenBellByHand) {
  ByteNgrams ngrams;
  ngrams.add("aab");
  // Singles: a 2, b 1, two kinds. Pairs after a: a 1, b 1. Triples after BOS a: a 1; after a a:
  // b 1.
  const double one_a = (2 + 2.0 / 256) / 5, one_b = (1 + 2.0 / 256) / 5;
  const double two_b = (1 + 2 * one_b) / 4, start_a = (1 + one_a) / 2;
  EXPECT_NEAR(ngrams.log_probability(1, "xyz", false, 'a'), std::log(one_a), 1e-12);
  EXPECT_NEAR(ngrams.log_probability(2, "a", false, 'b'), std::log(two_b), 1e-12);
  EXPECT_NEAR(ngrams.log_probability(3, "aa", false, 'b'), std::log((1 + two_b) / 2), 1e-12);
  EXPECT_NEAR(ngrams.log_probability(3, "", true, 'a'), std::log(start_a), 1e-12);
  EXPECT_NEAR(ngrams.log_probability(3, "", false, 'a'), std::log(one_a),
              1e-12);  // no context known
  EXPECT_NEAR(ngrams.log_probability(3, "z", false, 'a'), std::log(one_a),
              1e-12);  // a context never seen
  EXPECT_THROW(ngrams.log_probability(4, "a", false, 'a'), ConfigError);
}

TEST_F(NgramTest, PartsOfADocumentCountAsTheWhole) {
  ByteNgrams whole, parts;
  whole.add("some text in parts");
  parts.add("some te");
  parts.add("xt in parts", false);
  for (const std::string context : {"te", "ex", "e ", "so"}) {
    EXPECT_EQ(whole.log_probability(3, context, false, 'x'),
              parts.log_probability(3, context, false, 'x'));
  }
}

TEST_F(NgramTest, ScoreOfRowsIsTheSumOverTargetsWithTheContextOfTheRow) {
  for (int i = 0; i < 30; ++i)
    write(fmt::format("{}.txt", i), fmt::format("the text of document {}\n", i * 31));
  DataConfig data = config();
  data.validation_fraction = 0.3;
  const auto corpus = prepare(data);
  const ByteNgrams ngrams = fit_ngrams(*corpus);
  const ValidationSet set = validation_batches(*corpus, 0, 7, 4, 1'000'000);
  double nats = 0;
  for (const Batch& batch : set.batches) {
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      if (batch.targets[i] < 0) continue;
      std::string context;
      bool at_start = false;
      for (int32_t back = batch.positions[i]; back >= 0; --back) {
        const int32_t token = batch.tokens[i - static_cast<size_t>(back)];
        if (token == 256) {
          at_start = true;
        } else {
          context += static_cast<char>(token);
        }
      }
      nats -= ngrams.log_probability(3, context, at_start, static_cast<uint8_t>(batch.targets[i]));
    }
  }
  const NgramScore score = ngrams.score(3, set, corpus->tokenizer());
  EXPECT_NEAR(score.nats, nats, 1e-9 * nats);
  EXPECT_EQ(score.bytes, set.bytes);
  EXPECT_NEAR(score.bits_per_byte(), nats / static_cast<double>(set.bytes) / std::log(2.0), 1e-9);
}

TEST_F(NgramTest, BatchesOfOneEpochCountWhatTheTextHoldsUpToTheBordersOfRows) {
  for (int i = 0; i < 40; ++i)
    write(fmt::format("{}.txt", i), fmt::format("line {} of the text\n", i * 17));
  const auto corpus = prepare(config());
  const ByteNgrams whole = fit_ngrams(*corpus);
  ByteNgrams batches;
  BatchStream stream(corpus, {.sequence_length = 16, .batch_rows = 1, .seed = 3});
  for (int64_t row = stream.rows_per_epoch(0); row > 0; --row)
    batches.add(stream.next(), corpus->tokenizer());
  EXPECT_EQ(batches.bytes(), whole.bytes());
  for (const uint8_t byte : {'l', 't', '1', '\n'}) {
    EXPECT_EQ(batches.log_probability(1, "", false, byte),
              whole.log_probability(1, "", false, byte));
  }
  // Rows cut contexts: what follows "te" within rows is still nothing but x.
  EXPECT_GT(batches.log_probability(3, "te", false, 'x'),
            batches.log_probability(3, "zz", false, 'x'));
}

TEST_F(NgramTest, ABatchInOneRowPerDocumentCountsAsTheDocuments) {
  ByteNgrams by_batch, by_text;
  Batch batch{.rows = 2, .length = 4};
  batch.tokens = {256, 'a', 'b', 257, 256, 'b', 'a', 'c'};
  batch.targets = {'a', 'b', 257, -1, 'b', 'a', 'c', -1};
  batch.documents.assign(8, 0);
  by_batch.add(batch, *byte_tokenizer());
  by_text.add("ab");
  by_text.add("bac");
  for (const std::string context : {"", "a", "b", "ba", "ab", "zz"}) {
    for (const bool at_start : {false, true}) {
      EXPECT_EQ(by_batch.log_probability(3, context, at_start, 'a'),
                by_text.log_probability(3, context, at_start, 'a'))
          << context;
    }
  }
}

TEST_F(NgramTest, MoreContextPredictsTextBetterAndTrainingTextOnlyIsCounted) {
  for (int i = 0; i < 200; ++i) {
    write(fmt::format("{}.txt", i),
          fmt::format("the number {} is followed by the number {}, as always\n", i, i + 1));
  }
  DataConfig data = config();
  data.validation_fraction = 0.2;
  const auto corpus = prepare(data);
  const ByteNgrams ngrams = fit_ngrams(*corpus);
  const ValidationSet set = validation_batches(*corpus, 0, 64, 8, 1'000'000);
  const auto bits = [&](int order) {
    return ngrams.score(order, set, corpus->tokenizer()).bits_per_byte();
  };
  EXPECT_LT(bits(3), bits(2));
  EXPECT_LT(bits(2), bits(1));
  EXPECT_LT(bits(1), 8.0);
}

}  // namespace
}  // namespace fovea::ngram_test
