// Several texts at once: each as it is alone.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/infer/generate.h"
#include "tests/infer/tiny_writer.h"
#include "tests/support/expect_error.h"

namespace fovea::generate_texts_test {
namespace {

using namespace fovea::testing;

void expect_same(const GenerateResult& got, const GenerateResult& alone, size_t n) {
  EXPECT_EQ(got.text, alone.text) << n;
  EXPECT_EQ(got.reason, alone.reason) << n;
  EXPECT_EQ(got.stop, alone.stop) << n;
  EXPECT_EQ(got.tokens, alone.tokens) << n;
  EXPECT_EQ(got.prompt_tokens, alone.prompt_tokens) << n;
}

// Prompts, lengths, seeds and ends of their own, greedy and drawn; more texts than share a step.
TEST(GenerateTexts, GivesEachTheTextThatItHasAlone) {
  std::vector<TextRequest> requests;
  for (int64_t n = 0; n < 13; ++n) {
    TextRequest request{
        .prompt = std::string(static_cast<size_t>(n % 5 + 1), static_cast<char>('a' + n % 7)),
        .options = {.sampling = {.temperature = n % 3 == 0 ? 0.0 : 0.8}, .max_tokens = n * 3 % 20}};
    request.options.seed = n;
    if (n % 4 == 3) request.options.stop = {"e", "\u00e9"};
    requests.push_back(request);
  }
  std::vector<ModelConfig> configs(3, writer_config());
  configs[1].attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  configs[2].attention.spec.multi_token.before = {.queries = 2, .keys = 3};  // by layers
  for (const ModelConfig& config : configs) {
    const Transformer model = tiny(config);
    for (const ContextOptions& context :
         {ContextOptions{}, ContextOptions{.context = 12},
          ContextOptions{.context = 12, .when_full = WhenFull::slide}}) {
      std::vector<GenerateResult> alone;
      for (const TextRequest& request : requests)
        alone.push_back(
            generate_text(model, bytes(), request.prompt, request.options, {}, context));
      for (const int64_t batch : {1, 3, 8, 16}) {
        size_t count = 0;
        generate_texts(model, bytes(), requests, context,
                       [&](size_t n, const GenerateResult& got) {
                         EXPECT_EQ(n, count++) << "out of order";
                         expect_same(got, alone[n], n);
                       },
                       nullptr, {.batch = batch});
        EXPECT_EQ(count, requests.size());
      }
    }
  }
}

/// One layer of hard Focus over texts long enough for sorted keys.
ModelConfig long_focus_config() {
  ModelConfig c = writer_config();
  c.context = 6000;
  c.attention.spec.focus = {.gate = FocusSpec::Gate::hard, .groups = 4, .top_k = 1, .window = 20};
  c.attention.spec.focus.width = 8;
  return c;
}

// Prompts that are read in several parts while others are written; with hard Focus the way that
// keys are found depends on a text's own past alone.
TEST(GenerateTexts, LongPromptsAmongShortOnesChangeNoText) {
  ModelConfig plain = writer_config();
  plain.context = 6000;
  for (const ModelConfig& config : {plain, long_focus_config()}) {
    const Transformer model = tiny(config);
    std::vector<TextRequest> requests;
    for (const int64_t length : {5, 1300, 40, 4200, 700, 1, 2048}) {
      std::string prompt;
      for (int64_t i = 0; i < length; ++i) prompt += static_cast<char>('a' + (i * i + length) % 26);
      requests.push_back(
          {.prompt = prompt,
           .options = {.sampling = {.temperature = 0.7}, .max_tokens = 60, .seed = length}});
    }
    for (const int64_t batch : {2, 7}) {
      size_t longest_plan = 0;
      generate_texts(model, bytes(), requests, {},
                     [&](size_t n, const GenerateResult& got) {
                       const GenerateResult alone =
                           generate_text(model, bytes(), requests[n].prompt, requests[n].options);
                       expect_same(got, alone, n);
                       EXPECT_EQ(got.path.plan.text(), alone.path.plan.text()) << n;
                       if (got.path.plan.text() == "sorted") ++longest_plan;
                     },
                     nullptr, {.batch = batch});
      EXPECT_EQ(longest_plan, config == plain ? 0U : 1U);
    }
  }
}

/// What progress said after every step of a batch.
std::vector<BatchProgress> progress_of(const Transformer& model,
                                       std::span<const TextRequest> requests, BatchOptions batch) {
  std::vector<BatchProgress> all;
  batch.progress = [&](const BatchProgress& now) { all.push_back(now); };
  size_t done = 0;
  generate_texts(
      model, bytes(), requests, {}, [&](size_t, const GenerateResult&) { ++done; }, nullptr, batch);
  EXPECT_EQ(done, requests.size());
  return all;
}

TEST(GenerateTexts, AFinishedTextMakesRoomForTheNext) {
  const Transformer model = tiny();
  std::vector<TextRequest> requests(9, {.prompt = "a", .options = greedy(3)});
  requests[0].options.max_tokens = 16;
  const std::vector<BatchProgress> all = progress_of(model, requests, {.batch = 2});
  int64_t most = 0;
  for (const BatchProgress& now : all) {
    most = std::max(most, now.reading + now.writing);
    EXPECT_LE(now.reading + now.writing, 2);
  }
  EXPECT_EQ(most, 2);
  // Eight short texts of two steps each pass beside the long one of 15. A batch that waits for its
  // longest text would need 15 and then 8 for the pairs that are left.
  EXPECT_LE(std::ssize(all), 17);
  EXPECT_EQ(all.back().finished, 9);
  EXPECT_EQ(all.back().tokens, 16 + 8 * 3);
  EXPECT_EQ(all.back().cache_bytes, 0);
}

TEST(GenerateTexts, OthersAreWrittenWhileALongPromptIsRead) {
  ModelConfig config = writer_config();
  config.context = 6000;
  const Transformer model = tiny(config);
  const std::vector<TextRequest> requests{{.prompt = "a", .options = greedy(40)},
                                          {.prompt = std::string(5500, 'b'), .options = greedy(3)}};
  int64_t tokens_while_reading = 0;
  for (const BatchProgress& now : progress_of(model, requests, {.batch = 2}))
    if (now.reading == 1 && now.writing == 1) tokens_while_reading = now.tokens;
  EXPECT_GE(tokens_while_reading, 5);  // one a part of the prompt
  EXPECT_LE(tokens_while_reading, 12);
}

TEST(GenerateTexts, CachesStayWithinTheirBoundAndALargerTextIsAnsweredAlone) {
  const Transformer model = tiny();
  std::vector<TextRequest> requests(7, {.prompt = "ab", .options = greedy(4)});
  requests[3].options.max_tokens = 20;
  const int64_t one = model.decode_state_bytes(1, 7), large = model.decode_state_bytes(1, 23);
  const BatchOptions batch{.batch = 8, .cache_bytes = 5 * one / 2};
  ASSERT_GT(large, batch.cache_bytes);
  int64_t most = 0;
  for (const BatchProgress& now : progress_of(model, requests, batch)) {
    EXPECT_TRUE(now.cache_bytes <= batch.cache_bytes ||
                (now.cache_bytes == large && now.reading + now.writing == 1));
    most = std::max(most, now.cache_bytes);
    EXPECT_LE(now.most_cache_bytes, large);
  }
  EXPECT_EQ(most, large);
  EXPECT_EQ(batch_cache_bytes(model, bytes(), requests, {}, batch), large);
  EXPECT_EQ(batch_cache_bytes(model, bytes(), requests, {}, {.batch = 2}), large + one);
  EXPECT_EQ(batch_cache_bytes(model, bytes(), requests, {}, {}), large + 6 * one);
}

TEST(GenerateTexts, AnswersMayComeAsTheyFinish) {
  const Transformer model = tiny();
  std::vector<TextRequest> requests;
  for (const int64_t tokens : {9, 3, 6, 1}) requests.push_back({"a", greedy(tokens)});
  std::vector<size_t> order;
  generate_texts(model, bytes(), requests, {},
                 [&](size_t n, const GenerateResult& got) {
                   EXPECT_EQ(got.tokens, requests[n].options.max_tokens);
                   order.push_back(n);
                 },
                 nullptr, {.batch = 4, .order = BatchOptions::Order::finished});
  EXPECT_EQ(order, (std::vector<size_t>{3, 1, 2, 0}));
}

TEST(GenerateTexts, ImpossibleBatchesAreRefused) {
  const Transformer model = tiny();
  const std::vector<TextRequest> one(1, {"a", greedy(1)});
  const auto with = [&](const BatchOptions& batch) {
    generate_texts(
        model, bytes(), one, {}, [](size_t, const GenerateResult&) {}, nullptr, batch);
  };
  EXPECT_ERROR(ConfigError, with({.batch = 0}), "1 to 1024", "got 0");
  EXPECT_ERROR(ConfigError, with({.batch = 1025}), "1 to 1024", "got 1025");
  EXPECT_ERROR(ConfigError, with({.cache_bytes = -1}), "bytes", "got -1");
}

TEST(GenerateTexts, AnInterruptEndsAllThatRemain) {
  const Transformer model = tiny();
  std::atomic<bool> interrupt = false;
  const std::vector<TextRequest> requests(3, {.prompt = "ab", .options = greedy(8)});
  std::vector<TextRequest> unequal = requests;
  unequal[0].options.max_tokens = 2;
  std::vector<FinishReason> reasons;
  generate_texts(
      model, bytes(), unequal, {},
      [&](size_t, const GenerateResult& r) {
        reasons.push_back(r.reason);
        interrupt = true;
      },
      &interrupt);
  EXPECT_EQ(reasons, (std::vector{FinishReason::length, FinishReason::interrupted,
                                  FinishReason::interrupted}));
}

}  // namespace
}  // namespace fovea::generate_texts_test
