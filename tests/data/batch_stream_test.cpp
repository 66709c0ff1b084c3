// Packing, order, shares and exact resume of training batches (spec 9.10).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/batch_stream.h"

#include <map>
#include <set>

#include "fovea/data/permutation.h"
#include "tests/data/data_fixture.h"

namespace fovea::batch_stream_test {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kBos = 256, kEos = 257, kPad = 258;

bool operator_equal(const Batch& a, const Batch& b) {
  return a.tokens == b.tokens && a.targets == b.targets && a.documents == b.documents &&
         a.positions == b.positions && a.sources == b.sources;
}

class BatchStreamTest : public DataTest {
 protected:
  // Documents of 1 to 60 bytes; every byte of document i is the character 33 + i.
  std::shared_ptr<const Corpus> numbered(int count) {
    for (int i = 0; i < count; ++i) {
      write(fmt::format("{:02}", i),
            std::string(static_cast<size_t>(1 + i * 37 % 60), static_cast<char>(33 + i)));
    }
    return prepare();
  }
  BatchStream stream(std::shared_ptr<const Corpus> corpus, int64_t length, int64_t rows,
                     uint64_t seed = 0) {
    return BatchStream(std::move(corpus),
                       {.sequence_length = length, .batch_rows = rows, .seed = seed});
  }
};

TEST(Permutation, IsABijectionForEverySizeAndDependsOnTheSeed) {
  for (const uint64_t n : {1u, 2u, 3u, 7u, 64u, 65u, 1000u}) {
    std::set<uint64_t> images, others;
    int moved = 0;
    for (uint64_t i = 0; i < n; ++i) {
      images.insert(Permutation(1, n)(i));
      moved += Permutation(1, n)(i) != Permutation(2, n)(i);
    }
    EXPECT_EQ(images.size(), n);
    EXPECT_LT(*images.rbegin(), n);
    EXPECT_GE(moved, n >= 64 ? static_cast<int>(n) / 2 : 0);
  }
}

TEST_F(BatchStreamTest, EachTokenOfEachTrainingDocumentIsAnInputExactlyOncePerEpoch) {
  const auto corpus = numbered(40);
  const CorpusSource& source = corpus->sources()[0];
  for (const int64_t length : {1, 7, 32, 100}) {
    BatchStream batches = stream(corpus, length, 1);
    for (int epoch = 0; epoch < 3; ++epoch) {
      std::map<int32_t, int64_t> inputs, targets, expected;
      for (int64_t row = 0; row < batches.rows_per_epoch(0); ++row) {
        const Batch batch = batches.next();
        for (const int32_t token : batch.tokens) ++inputs[token];
        for (const int32_t token : batch.targets) ++targets[token];
      }
      for (const std::string& text : texts(source, source.train))
        expected[text[0]] += static_cast<int64_t>(text.size());
      expected[kBos] = expected[kEos] = static_cast<int64_t>(source.train.size());
      const int64_t pads = batches.rows_per_epoch(0) * length - source.train_tokens;
      if (pads > 0) expected[kPad] = pads;
      EXPECT_EQ(inputs, expected);
      // Everything but begin marks is predicted once; end marks and pads predict nothing.
      expected[-1] = expected[kEos] + pads;
      expected.erase(kBos);
      expected.erase(kPad);
      EXPECT_EQ(targets, expected);
    }
  }
}

TEST_F(BatchStreamTest, TargetsAreTheNextTokenOfTheSameDocumentAndPositionsRestart) {
  BatchStream batches = stream(numbered(40), 48, 5);
  for (int step = 0; step < 30; ++step) {
    const Batch batch = batches.next();
    for (int64_t row = 0; row < batch.rows; ++row) {
      for (int64_t column = 0; column < batch.length; ++column) {
        const size_t i = static_cast<size_t>(row * batch.length + column);
        const bool begins = column == 0 || batch.documents[i] != batch.documents[i - 1];
        EXPECT_EQ(batch.documents[i], column == 0 ? 0 : batch.documents[i - 1] + (begins ? 1 : 0));
        EXPECT_EQ(batch.positions[i], begins ? 0 : batch.positions[i - 1] + 1);
        if (column > 0) {
          EXPECT_EQ(begins, batch.tokens[i] == kBos ||
                                (batch.tokens[i] == kPad && batch.tokens[i - 1] == kEos));
          EXPECT_EQ(batch.targets[i - 1], begins || batch.tokens[i] == kPad ? -1 : batch.tokens[i]);
        }
        if (batch.tokens[i] == kEos || batch.tokens[i] == kPad) {
          EXPECT_EQ(batch.targets[i], -1);
        }
      }
    }
  }
}

TEST_F(BatchStreamTest, TheLastTargetOfARowIsTheFirstInputOfTheRowThatContinuesIt) {
  write("a.txt", "0123456789abcdefghijklmnopqrstuvwxyz");
  const auto corpus = prepare("a.txt");
  BatchStream batches = stream(corpus, 4, 1);
  std::map<int32_t, int32_t>
      next;  // from each token to its target; the characters are all different
  for (int64_t row = 0; row < batches.rows_per_epoch(0); ++row) {
    const Batch batch = batches.next();
    for (size_t i = 0; i < 4; ++i) next[batch.tokens[i]] = batch.targets[i];
  }
  std::string text;
  for (int32_t token = next.at(kBos); token != kEos; token = next.at(token)) {
    text += static_cast<char>(token);
  }
  EXPECT_EQ(text, text_of(corpus->sources()[0], corpus->sources()[0].train[0]));
}

TEST_F(BatchStreamTest, SeedAndEpochChangeTheOrder) {
  const auto corpus = numbered(40);
  BatchStream one = stream(corpus, 32, 4, 1), same = stream(corpus, 32, 4, 1),
              other = stream(corpus, 32, 4, 2);
  const Batch first = one.next();
  EXPECT_TRUE(operator_equal(first, same.next()));
  EXPECT_NE(first.tokens, other.next().tokens);
  BatchStream whole = stream(corpus, 32, one.rows_per_epoch(0));
  EXPECT_NE(whole.next().tokens, whole.next().tokens);
}

// Rows are counted over all ranks: their slices are the batch of one, and any number of ranks goes
// on from the state of any other.
TEST_F(BatchStreamTest, RowsAndStatesDoNotDependOnTheNumberOfRanks) {
  const auto corpus = numbered(40);
  BatchStream whole = stream(corpus, 32, 5, 7);
  LoaderState state = whole.state();
  for (const int64_t ranks : {1, 2, 3, 5, 4}) {
    const Batch expected = whole.next();
    std::vector<int32_t> tokens, targets;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      BatchStream part(
          corpus,
          {.sequence_length = 32, .batch_rows = 5, .seed = 7, .rank = rank, .ranks = ranks});
      part.restore(state);
      const Batch slice = part.next();
      tokens.insert(tokens.end(), slice.tokens.begin(), slice.tokens.end());
      targets.insert(targets.end(), slice.targets.begin(), slice.targets.end());
      EXPECT_EQ(part.state(), whole.state());
    }
    EXPECT_EQ(tokens, expected.tokens) << ranks;
    EXPECT_EQ(targets, expected.targets) << ranks;
    state = whole.state();
  }
}

TEST_F(BatchStreamTest, ResumesExactlyWithinAndAcrossEpochs) {
  const auto corpus = numbered(40);
  BatchStream original = stream(corpus, 32, 3, 7);
  std::vector<LoaderState> states;
  std::vector<Batch> batches;
  for (int step = 0; step < 60; ++step) {
    states.push_back(original.state());
    batches.push_back(original.next());
  }
  ASSERT_GT(60 * 3, 2 * original.rows_per_epoch(0));  // more than two epochs
  for (size_t at = 0; at < 60; at += 7) {
    BatchStream resumed = stream(corpus, 32, 3, 7);
    resumed.restore(LoaderState::from_json(states[at].to_json()));
    EXPECT_EQ(resumed.state(), states[at]);
    for (size_t step = at; step < std::min<size_t>(at + 9, 60); ++step) {
      EXPECT_TRUE(operator_equal(resumed.next(), batches[step])) << at << " " << step;
    }
  }
  original.restore(states[5]);  // backwards, on a used stream
  EXPECT_TRUE(operator_equal(original.next(), batches[5]));
}

TEST_F(BatchStreamTest, RowsDoNotDependOnTheBatchSize) {
  const auto corpus = numbered(30);
  BatchStream ones = stream(corpus, 16, 1), sixes = stream(corpus, 16, 6);
  for (int step = 0; step < 20; ++step) {
    const Batch six = sixes.next();
    for (size_t row = 0; row < 6; ++row) {
      const Batch one = ones.next();
      EXPECT_TRUE(std::equal(one.tokens.begin(), one.tokens.end(),
                             six.tokens.begin() + static_cast<int64_t>(row * 16)));
    }
  }
}

TEST_F(BatchStreamTest, SharesOfSourcesAreExactAtAnyTime) {
  for (const char* name : {"a", "b", "c"}) {
    for (int i = 0; i < 8; ++i)
      write(fmt::format("{}/{}.txt", name, i),
            fmt::format("{} text number {} of some length\n", name, i));
  }
  DataConfig data = config("a");
  data.sources.resize(3, data.sources[0]);
  const double weights[] = {0.6, 3.0, 2.4};
  for (size_t i = 0; i < 3; ++i) {
    data.sources[i].path = text(std::string(1, static_cast<char>('a' + i))).string();
    data.sources[i].weight = weights[i];
  }
  BatchStream batches = stream(prepare(data), 16, 7);
  int64_t counts[3] = {};
  for (int64_t step = 1; step <= 200; ++step) {
    const Batch batch = batches.next();
    for (size_t row = 0; row < 7; ++row) {
      const auto source = static_cast<size_t>(batch.sources[row]);
      ++counts[source];
      for (size_t i = 0; i < 16; ++i) {  // the text of the row is of that source
        const int32_t token = batch.tokens[row * 16 + i];
        if (token == kBos && batch.targets[row * 16 + i] >= 0) {
          EXPECT_EQ(batch.targets[row * 16 + i], 'a' + batch.sources[row]);
        }
      }
    }
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(static_cast<double>(counts[i]), weights[i] / 6.0 * static_cast<double>(step * 7),
                  1.0 + 1e-9);
    }
  }
}

TEST_F(BatchStreamTest, ResumesExactlyWithSeveralSources) {
  for (const char* name : {"a", "b"}) {
    for (int i = 0; i < 8; ++i)
      write(fmt::format("{}/{}.txt", name, i), fmt::format("{} text number {}\n", name, i));
  }
  DataConfig data = config("a");
  data.sources.push_back(data.sources[0]);
  data.sources[1].path = text("b").string();
  data.sources[1].weight = 0.37;
  const auto corpus = prepare(data);
  BatchStream original = stream(corpus, 8, 3, 3);
  for (int step = 0; step < 41; ++step) original.next();
  BatchStream resumed = stream(corpus, 8, 3, 3);
  resumed.restore(original.state());
  for (int step = 0; step < 30; ++step)
    EXPECT_TRUE(operator_equal(original.next(), resumed.next()));
}

TEST_F(BatchStreamTest, TextShorterThanASequenceIsAnInputErrorWithTheSizes) {
  write("a.txt", "short text\n");
  const auto corpus = prepare("a.txt");
  try {
    stream(corpus, 64, 2);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("64 tokens in source 'a'"));
    EXPECT_THAT(error.what(), HasSubstr("lower the sequence length"));
  }
  EXPECT_THROW(stream(corpus, 0, 1), ConfigError);
  EXPECT_THROW(stream(corpus, 4, 0), ConfigError);
}

TEST_F(BatchStreamTest, AStateOfAnotherCorpusLengthOrSeedIsACheckpointError) {
  const auto corpus = numbered(20);
  BatchStream batches = stream(corpus, 16, 2, 1);
  batches.next();
  const LoaderState good = batches.state();
  const auto refuses = [&](auto change, const char* word) {
    LoaderState state = good;
    change(state);
    try {
      batches.restore(state);
      ADD_FAILURE() << word;
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr(word));
    }
    EXPECT_EQ(batches.state(), good);
  };
  refuses([](LoaderState& s) { s.corpus = "0123"; }, "corpus 0123");
  refuses([](LoaderState& s) { s.sequence_length = 17; }, "sequence length 17");
  refuses([](LoaderState& s) { s.seed = 2; }, "seed 2");
  refuses([](LoaderState& s) { s.rows.push_back(1); }, "damaged");
  refuses([](LoaderState& s) { s.rows[0] = -1; }, "damaged");
  EXPECT_THROW(LoaderState::from_json({{"corpus", "x"}}), CheckpointError);
  EXPECT_THROW(LoaderState::from_json({{"corpus", 3}}), CheckpointError);
}

}  // namespace
}  // namespace fovea::batch_stream_test
