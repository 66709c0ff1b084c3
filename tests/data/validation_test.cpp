// Validation batches: fixed, disjoint, and they count text bytes only (spec 9.3).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tests/data/data_fixture.h"

namespace fovea::validation_test {
namespace {

class ValidationTest : public DataTest {
 protected:
  std::shared_ptr<const Corpus> corpus() {
    for (int i = 0; i < 60; ++i) {
      write(fmt::format("{}.txt", i), fmt::format("{:03} is document number {} of sixty\n", i, i));
    }
    DataConfig data = config();
    data.validation_fraction = 0.4;
    return prepare(data);
  }
};

TEST_F(ValidationTest, EveryByteOfTheValidationTextIsScoredOnceAndNoMark) {
  const auto data = corpus();
  const CorpusSource& source = data->sources()[0];
  std::multiset<char> expected, scored;
  for (const DocumentSpan& span : source.validation) {
    for (const char c : text_of(source, span)) expected.insert(c);
  }
  for (const int64_t length : {5, 16, 1000}) {
    const ValidationSet set = validation_batches(*data, 0, length, 3, 1'000'000);
    scored.clear();
    int64_t bytes = 0;
    for (const Batch& batch : set.batches) {
      bytes += bytes_of_targets(batch, data->tokenizer());
      for (const int32_t target : batch.targets) {
        EXPECT_LT(target, 256);
        if (target >= 0) scored.insert(static_cast<char>(target));
      }
    }
    EXPECT_EQ(scored, expected);
    EXPECT_EQ(set.bytes, static_cast<int64_t>(expected.size()));
    EXPECT_EQ(set.targets, set.bytes);
    EXPECT_EQ(set.bytes, bytes);
    EXPECT_EQ(set.source, "text");
  }
}

TEST_F(ValidationTest, NeverShowsATrainingDocument) {
  const auto data = corpus();
  const CorpusSource& source = data->sources()[0];
  std::set<std::string> train;
  for (const std::string& text : texts(source, source.train)) train.insert(text.substr(0, 3));
  const ValidationSet set = validation_batches(*data, 0, 10'000, 1, 1'000'000);
  const Batch& batch = set.batches.at(0);
  int documents = 0;
  for (size_t i = 0; i + 3 < batch.tokens.size(); ++i) {
    if (batch.tokens[i] != 256) continue;
    std::string head;
    for (size_t k = 1; k <= 3; ++k) head += static_cast<char>(batch.tokens[i + k]);
    EXPECT_FALSE(train.contains(head)) << head;
    ++documents;
  }
  EXPECT_EQ(documents, static_cast<int>(source.validation.size()));
}

TEST_F(ValidationTest, ALimitTakesWholeRowsSpreadOverTheText) {
  const auto data = corpus();
  const ValidationSet all = validation_batches(*data, 0, 16, 1, 1'000'000),
                      some = validation_batches(*data, 0, 16, 4, 100);
  ASSERT_EQ(some.batches.size(), 2u);  // 6 rows of 16 are at most 100 tokens
  EXPECT_EQ(some.batches[0].rows, 4);
  EXPECT_EQ(some.batches[1].rows, 2);
  EXPECT_EQ(some.batches[1].tokens.size(), 32u);
  std::set<size_t> found;
  for (const Batch& batch : some.batches) {
    for (int64_t row = 0; row < batch.rows; ++row) {
      for (size_t i = 0; i < all.batches.size(); ++i) {
        if (std::equal(all.batches[i].tokens.begin(), all.batches[i].tokens.end(),
                       batch.tokens.begin() + row * 16))
          found.insert(i);
      }
    }
  }
  ASSERT_EQ(found.size(), 6u);
  EXPECT_EQ(*found.begin(), 0u);
  EXPECT_GT(*found.rbegin(), all.batches.size() * 2 / 3);
  EXPECT_EQ(validation_batches(*data, 0, 16, 4, 1).batches.at(0).rows, 1);
}

TEST_F(ValidationTest, IsTheSameEveryTimeAndInEveryBatchSize) {
  const auto data = corpus();
  const ValidationSet one = validation_batches(*data, 0, 16, 1, 320),
                      eight = validation_batches(*data, 0, 16, 8, 320);
  std::vector<int32_t> a, b;
  for (const Batch& batch : one.batches)
    a.insert(a.end(), batch.tokens.begin(), batch.tokens.end());
  for (const Batch& batch : eight.batches)
    b.insert(b.end(), batch.tokens.begin(), batch.tokens.end());
  EXPECT_EQ(a, b);
  EXPECT_EQ(one.bytes, eight.bytes);
}

}  // namespace
}  // namespace fovea::validation_test
