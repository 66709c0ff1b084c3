// The order of work: fairness between prompts, steps between chunks, limits of caches.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/scheduler.h"

#include <gtest/gtest.h>

#include "tests/engine/tiny_engine.h"

namespace fovea::scheduler_test {
namespace {

using namespace fovea::testing;

/// A scheduler that a test drives round by round.
struct Driven {
  explicit Driven(const EngineOptions& given = {.chunk = 128},
                  const ModelConfig& config = engine_config(6000),
                  int64_t cache_bytes = int64_t{1} << 40)
      : options(given) {
    models.push_back(std::make_unique<TextModel>(engine_model("base", config), options));
    scheduler = std::make_unique<Scheduler>(models, options, cache_bytes, cache_bytes / 2, [this] {
      return EngineClock::time_point(now += tick);
    });
  }

  std::shared_ptr<Answer> add(int64_t length, int64_t max_tokens, int64_t salt = 0) {
    auto job = std::make_unique<EngineJob>();
    job->model = models.front().get();
    job->request.generate = greedy(max_tokens);
    job->request.ignore_end = true;
    job->prompt = prompt_tokens(bytes(), {.prompt = varied_text(length - 1, salt), .options = {}});
    EXPECT_EQ(job->prompt_size(), length);
    job->bytes = job->model->bytes(length, job->most_tokens(), 1);
    job->submitted = EngineClock::now();
    job->cancelled = [this, n = added] { return cancelled == n; };
    last = job.get();
    auto answer = std::make_shared<Answer>();
    job->events = into(answer);
    scheduler->add(std::move(job));
    ++added;
    return answer;
  }
  /// Rounds until the answer has a token.
  int rounds_to_first(const Answer& answer) {
    int rounds = 0;
    for (; answer.tokens.empty(); ++rounds) {
      scheduler->run_once();
      if (rounds > 1000) ADD_FAILURE() << "no token after 1000 rounds";
      if (rounds > 1000) break;
    }
    return rounds;
  }

  EngineOptions options;
  std::vector<std::unique_ptr<TextModel>> models;
  std::unique_ptr<Scheduler> scheduler;
  EngineJob* last = nullptr;
  std::chrono::milliseconds now{0}, tick{0};  // that pass whenever the scheduler looks
  int added = 0, cancelled = -1;
};

TEST(Scheduler, AShortRequestWaitsForThreeChunksAtMostBesideLongPrompts) {
  for (const int long_ones : {1, 4}) {
    Driven engine;
    for (int n = 0; n < long_ones; ++n) engine.add(4096, 4, n);
    for (int round = 0; round < 3; ++round) {  // whichever turn it is
      engine.scheduler->run_once();
      const auto answer = engine.add(20, 2, 9 + round);
      EXPECT_LE(engine.rounds_to_first(*answer), 3) << long_ones << " " << round;
    }
  }
}

TEST(Scheduler, ALongPromptIsReadWhileShortOnesKeepComing) {
  Driven engine;
  const auto answer = engine.add(1280, 1);  // ten chunks
  int rounds = 0;
  for (; answer->tokens.empty() && rounds < 100; ++rounds) {
    engine.add(100, 1, rounds + 1);
    engine.scheduler->run_once();
  }
  EXPECT_LE(rounds, 31);
}

TEST(Scheduler, TextsAreWrittenBetweenTheChunksOfAPrompt) {
  Driven engine;
  const auto writer = engine.add(5, 100);
  engine.scheduler->run_once();
  const auto reader = engine.add(2560, 1, 3);  // twenty chunks
  for (size_t round = 1; reader->tokens.empty(); ++round) {
    ASSERT_LE(round, 25U);
    const size_t before = writer->tokens.at(0).size();
    engine.scheduler->run_once();
    EXPECT_EQ(writer->tokens.at(0).size(), before + 1) << round;
  }
}

TEST(Scheduler, AChunkGoesOnBetweenStepsWhereTextsHaveWaitedLongEnough) {
  ModelConfig config = engine_config(6000);
  config.layers = 6;
  Driven alone({.chunk = 128, .pause_ms = 100}, config);
  const auto expected = alone.add(300, 5, 3);
  while (!alone.scheduler->idle()) alone.scheduler->run_once();

  Driven engine({.chunk = 128, .pause_ms = 100}, config);
  const auto writer = engine.add(5, 100);
  engine.scheduler->run_once();
  engine.tick = std::chrono::milliseconds(30);  // four layers take longer than the pause
  const auto reader = engine.add(300, 5, 3);    // 18 layers of three parts
  int rounds = 0;
  for (; reader->tokens.empty(); ++rounds) {
    ASSERT_LE(rounds, 12);
    const size_t before = writer->tokens.at(0).size();
    engine.scheduler->run_once();
    EXPECT_EQ(writer->tokens.at(0).size(), before + 1) << rounds;
  }
  EXPECT_GE(rounds, 5);
  while (!engine.scheduler->idle()) engine.scheduler->run_once();
  EXPECT_EQ(reader->tokens, expected->tokens);
  EXPECT_EQ(engine.scheduler->statistics().chunks, 4);
}

TEST(Scheduler, NobodyInterruptsAChunkWhileNoTextIsWritten) {
  Driven engine;
  engine.tick = std::chrono::seconds(1);
  engine.add(256, 1);
  engine.scheduler->run_once();
  EXPECT_EQ(engine.scheduler->statistics().chunks, 1);
}

TEST(Scheduler, ARequestIsCancelledInTheMiddleOfAChunk) {
  ModelConfig config = engine_config(6000);
  config.layers = 6;
  Driven engine({.chunk = 128, .pause_ms = 0}, config);
  const auto writer = engine.add(5, 20);
  engine.scheduler->run_once();
  const auto reader = engine.add(300, 5, 3);
  engine.scheduler->run_once();
  engine.scheduler->run_once();
  EXPECT_EQ(engine.scheduler->statistics().chunks, 1);  // the writer's
  engine.cancelled = 1;
  engine.scheduler->run_once();
  EXPECT_EQ(reader->outcome(), RequestOutcome::cancelled);
  while (!engine.scheduler->idle()) engine.scheduler->run_once();
  EXPECT_EQ(writer->outcome(), RequestOutcome::done);
}

TEST(Scheduler, SeveralShortPromptsAreReadInOneRound) {
  Driven engine;
  std::vector<std::shared_ptr<Answer>> answers;
  for (int64_t n = 0; n < 6; ++n) answers.push_back(engine.add(20, 2, n));
  engine.scheduler->run_once();
  for (const auto& answer : answers) EXPECT_FALSE(answer->tokens.empty());
}

TEST(Scheduler, ACancelledRequestIsGoneWithinOneRoundAndItsRoomIsFree) {
  Driven engine({.sequences = 1, .chunk = 128});
  const auto first = engine.add(5, 1000), second = engine.add(6, 2, 1);
  engine.scheduler->run_once();
  engine.scheduler->run_once();
  EXPECT_TRUE(second->tokens.empty());
  engine.cancelled = 0;
  engine.scheduler->run_once();
  EXPECT_EQ(first->outcome(), RequestOutcome::cancelled);
  EXPECT_FALSE(second->tokens.empty());
  engine.scheduler->run_once();
  EXPECT_TRUE(engine.scheduler->idle());
  EXPECT_EQ(second->outcome(), RequestOutcome::done);
}

TEST(Scheduler, ALateRequestEndsWhereverItIs) {
  Driven engine({.sequences = 1, .chunk = 128});
  const auto at_work = engine.add(5, 1000);
  EngineJob* const first = engine.last;
  engine.scheduler->run_once();
  const auto waiting = engine.add(5, 1000, 1);
  engine.last->deadline = EngineClock::now();
  engine.scheduler->run_once();
  EXPECT_EQ(waiting->outcome(), RequestOutcome::deadline);
  EXPECT_TRUE(at_work->ends.empty());
  first->deadline = EngineClock::now();
  engine.scheduler->run_once();
  EXPECT_EQ(at_work->outcome(), RequestOutcome::deadline);
  EXPECT_EQ(at_work->ends.front().tokens, 3);
  EXPECT_TRUE(engine.scheduler->idle());
}

TEST(Scheduler, BeginningsAreReadOnceEvenWhereRequestsComeTogether) {
  Driven engine;
  std::vector<std::shared_ptr<Answer>> answers;
  for (int n = 0; n < 5; ++n) answers.push_back(engine.add(700, 2));  // five whole chunks, and 60
  while (!engine.scheduler->idle()) engine.scheduler->run_once();
  EXPECT_EQ(engine.scheduler->statistics().chunks, 5 + 5);
  EXPECT_EQ(answers.front()->prompts.front().cached, 0);
  for (size_t n = 1; n < answers.size(); ++n) {
    EXPECT_EQ(answers[n]->prompts.front().cached, 640);
    EXPECT_EQ(answers[n]->tokens, answers[0]->tokens);
  }
  EXPECT_EQ(engine.scheduler->statistics().prefix_hits, 4);
}

TEST(Scheduler, CachesStayWithinTheirLimitAndPrefixesMakeRoom) {
  const int64_t one = Driven().models.front()->bytes(500, 10, 1);
  Driven engine({.sequences = 8, .chunk = 128}, engine_config(6000), 5 * one / 2);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int64_t n = 0; n < 12; ++n) answers.push_back(engine.add(500, 10, n));
  int64_t most_running = 0;
  while (!engine.scheduler->idle()) {
    engine.scheduler->run_once();
    const EngineStatistics& now = engine.scheduler->statistics();
    EXPECT_LE(now.cache_bytes, now.cache_limit);
    most_running = std::max(most_running, now.running);
  }
  EXPECT_EQ(most_running, 2);
  EXPECT_GT(engine.scheduler->statistics().prefix_evicted, 0);
  EXPECT_GT(engine.scheduler->statistics().prefix_bytes, 0);
  for (const auto& answer : answers) EXPECT_EQ(answer->outcome(), RequestOutcome::done);
}

}  // namespace
}  // namespace fovea::scheduler_test
