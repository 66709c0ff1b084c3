// The loader thread: same batches, right states, errors that arrive, clean ends.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/loader.h"

#include <atomic>

#include "tests/data/data_fixture.h"

namespace fovea::loader_test {
namespace {

// Counts up; throws at `fails_at`.
class Counter : public BatchSource {
 public:
  explicit Counter(int64_t fails_at = -1) : fails_at_(fails_at) {}
  Batch next() override {
    if (state_.batches == fails_at_) throw InputError("the source broke");
    Batch batch;
    batch.rows = state_.batches++;
    most_ahead = state_.batches;
    return batch;
  }
  LoaderState state() const override { return state_; }
  void restore(const LoaderState& state) override {
    if (state.batches < 0) throw CheckpointError("not a state");
    state_ = state;
  }
  static inline std::atomic<int64_t> most_ahead{0};

 private:
  int64_t fails_at_;
  LoaderState state_;
};

class LoaderTest : public DataTest {};

TEST_F(LoaderTest, GivesTheBatchesAndStatesOfTheStreamItWraps) {
  for (int i = 0; i < 20; ++i)
    write(fmt::format("{}.txt", i), fmt::format("text number {} of twenty\n", i));
  const auto corpus = prepare();
  const BatchStreamOptions options{.sequence_length = 16, .batch_rows = 2, .seed = 4};
  BatchStream direct(corpus, options);
  Loader loader(std::make_unique<BatchStream>(corpus, options), 3);
  EXPECT_EQ(loader.state(), direct.state());
  LoaderState middle;
  for (int step = 0; step < 50; ++step) {
    if (step == 23) middle = loader.state();
    const Batch a = direct.next(), b = loader.next();
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.targets, b.targets);
    EXPECT_EQ(loader.state(), direct.state());
  }
  loader.restore(middle);
  direct.restore(middle);
  for (int step = 0; step < 10; ++step) EXPECT_EQ(direct.next().tokens, loader.next().tokens);
}

TEST_F(LoaderTest, RunsAtMostItsDepthAhead) {
  Counter::most_ahead = 0;
  Loader loader(std::make_unique<Counter>(), 2);
  for (int64_t step = 0; step < 100; ++step) {
    EXPECT_EQ(loader.next().rows, step);
    EXPECT_LE(Counter::most_ahead, step + 1 + 2 + 1);  // handed out, ready, and one being made
    EXPECT_EQ(loader.state().batches, step + 1);
  }
}

TEST_F(LoaderTest, AnErrorArrivesAfterTheBatchesBeforeItAndStays) {
  Loader loader(std::make_unique<Counter>(3), 8);
  for (int64_t step = 0; step < 3; ++step) EXPECT_EQ(loader.next().rows, step);
  EXPECT_THROW(loader.next(), InputError);
  EXPECT_THROW(loader.next(), InputError);
  EXPECT_EQ(loader.state().batches, 3);
  loader.restore(LoaderState{});
  EXPECT_EQ(loader.next().rows, 0);
}

TEST_F(LoaderTest, ARefusedRestoreChangesNothing) {
  Loader loader(std::make_unique<Counter>(), 4);
  loader.next();
  loader.next();
  LoaderState wrong;
  wrong.batches = -1;
  EXPECT_THROW(loader.restore(wrong), CheckpointError);
  EXPECT_EQ(loader.next().rows, 2);
}

TEST_F(LoaderTest, EndsCleanlyWithBatchesLeft) {
  for (int round = 0; round < 50; ++round) {
    Loader loader(std::make_unique<Counter>(), 1 + round % 3);
    if (round % 2 == 0) loader.next();
  }
  EXPECT_THROW(Loader(std::make_unique<Counter>(), 0), ConfigError);
}

}  // namespace
}  // namespace fovea::loader_test
