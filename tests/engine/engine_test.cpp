// The engine as its users see it: refusals, events, log-probabilities, ends.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <set>
#include <stdexcept>
#include <utility>

#include "fovea/engine/text_model.h"
#include "tests/engine/tiny_engine.h"
#include "tests/support/expect_error.h"

namespace fovea::engine_test {
namespace {

using namespace fovea::testing;

EngineEvents nobody() {
  return [](const EngineEvent&) {};
}

TEST(Engine, RefusesByNameWhatItCannotDo) {
  const auto with = [](const EngineOptions& options) { Engine engine(one_model(), options); };
  EXPECT_ERROR(ConfigError, with({.chunk = 200}), "multiple of 128", "got 200");
  EXPECT_ERROR(ConfigError, with({.sequences = 0}), "sequences", "got 0");
  EXPECT_ERROR(ConfigError, with({.queue = 0}), "queue", "got 0");
  const auto serve = [](std::vector<EngineModel> models) { Engine engine(std::move(models)); };
  std::vector<EngineModel> twice = one_model();
  twice.push_back(engine_model("base", engine_config()));
  EXPECT_ERROR(ConfigError, serve(std::move(twice)), "different names", "'base'");
  ModelConfig both_ways = engine_config();
  both_ways.attention.spec.mask.causal = false;
  EXPECT_ERROR(UnsupportedError, serve(one_model(both_ways)), "'base'", "mask.causal");
}

TEST(Engine, RefusesImpossibleRequests) {
  Engine engine(one_model(engine_config(64)), {.sequences = 4, .chunk = 128});
  const auto submit = [&](const EngineRequest& request) { engine.submit(request, nobody()); };
  EXPECT_ERROR(UnknownModel, submit({.model = "bade", .text = "a"}), "base", "'bade'");
  EXPECT_ERROR(InputError, submit({.tokens = {1, 259}}), "0 to 258", "got 259");
  EXPECT_ERROR(InputError, submit({.tokens = {-1}}), "0 to 258", "got -1");
  EXPECT_ERROR(ConfigError, submit({.text = "a", .choices = 5}), "1 to 4", "got 5");
  EXPECT_ERROR(ConfigError, submit({.text = "a", .top_logprobs = -1}), "got -1");
  EXPECT_ERROR(ConfigError, submit({.text = "a", .generate = {.sampling = {.top_p = 0.0}}}),
               "top_p");
  EXPECT_ERROR(ConfigError, submit({.text = "a", .generate = {.stop = {""}}}), "stop");
  try {
    submit({.text = std::string(64, 'a')});
    ADD_FAILURE() << "a prompt that does not fit was accepted";
  } catch (const PromptTooLong& error) {
    EXPECT_EQ(error.tokens(), 65);
    EXPECT_EQ(error.context(), 64);
    EXPECT_NE(std::string(error.what()).find("64"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("65"), std::string::npos);
  }
  Engine small(one_model(), {.cache_bytes = 1000});
  EXPECT_ERROR(MemoryError, small.submit({.text = "a"}, nobody()), "1000 bytes", "max_tokens");
}

TEST(Engine, TheQueueIsBounded) {
  Engine engine(one_model(), {.sequences = 1, .queue = 2, .chunk = 128});
  std::promise<void> reached, go_on;
  auto held = std::make_shared<Answer>();
  engine.submit({.text = "a", .generate = greedy(2)},
                [&, held, first = true](const EngineEvent& event) mutable {
                  held->add(event);
                  if (std::exchange(first, false)) {
                    reached.set_value();
                    go_on.get_future().wait();
                  }
                });
  reached.get_future().wait();
  std::vector<std::shared_ptr<Answer>> answers;
  for (int n = 0; n < 2; ++n) {
    answers.push_back(std::make_shared<Answer>());
    engine.submit({.text = "b", .generate = greedy(2)}, into(answers.back()));
  }
  EXPECT_ERROR(EngineBusy, engine.submit({.text = "c"}, nobody()), "at most 2", "again later");
  EXPECT_EQ(engine.statistics().refused, 1);
  EXPECT_EQ(engine.statistics().waiting, 2);
  go_on.set_value();
  EXPECT_TRUE(engine.wait());
  for (const auto& answer : answers) EXPECT_EQ(answer->outcome(), RequestOutcome::done);
  EXPECT_EQ(answer_of(engine, {.text = "c", .generate = greedy(2)}).outcome(),
            RequestOutcome::done);
}

TEST(Engine, ChoicesOfOnePromptAreReadOnceAndDrawnApart) {
  Engine engine(one_model());
  const EngineRequest request{
      .text = varied_text(300), .generate = {.max_tokens = 12, .seed = 5}, .choices = 4};
  const Answer four = answer_of(engine, request), again = answer_of(engine, request);
  EngineRequest single = request;
  single.choices = 1;
  const Answer one = answer_of(engine, single);
  EXPECT_EQ(four.prompts.size(), 1U);
  EXPECT_EQ(four.tokens, again.tokens);
  EXPECT_EQ(four.tokens.at(0), one.tokens.at(0));
  std::set<std::vector<int32_t>> different;
  for (const auto& [choice, tokens] : four.tokens) different.insert(tokens);
  EXPECT_GE(different.size(), 3U);
  EXPECT_EQ(four.ends.front().prompt_tokens, 301);
}

TEST(Engine, LogprobsAreThoseOfTheModelBeforeSampling) {
  const Transformer model = tiny(engine_config());
  Engine engine(one_model(), {.chunk = 128});
  const EngineRequest request{
      .text = varied_text(300),
      .generate = {.sampling = {.temperature = 0.5, .repetition_penalty = 1.3}, .max_tokens = 3},
      .top_logprobs = 4,
      .prompt_logprobs = 2};
  const Answer answer = answer_of(engine, request);
  std::vector<int32_t> tokens = engine.prompt_of(request);
  const auto prompt = static_cast<int64_t>(tokens.size());
  tokens.insert(tokens.end(), answer.tokens.at(0).begin(), answer.tokens.at(0).end());
  const at::NoGradGuard no_grad;
  ModelInput input;
  input.tokens_bt = at::tensor(at::ArrayRef<int32_t>(tokens), at::kInt).to(at::kLong).unsqueeze(0);
  const at::Tensor expected =
      model.logits(model.hidden(input))[0].narrow(1, 0, 259).to(at::kDouble).log_softmax(1);
  const auto& places = answer.prompts.front().logprobs;
  ASSERT_EQ(std::ssize(places), prompt);
  EXPECT_FALSE(places[0].has_value());
  for (int64_t n = 1; n < std::ssize(tokens); ++n) {
    const auto at = static_cast<size_t>(n);
    const PlaceLogprobs& place =
        n < prompt ? *places[at] : answer.logprobs.at(0)[at - static_cast<size_t>(prompt)];
    const at::Tensor row = expected[n - 1];
    EXPECT_EQ(place.token.token, tokens[at]);
    EXPECT_NEAR(place.token.logprob, row[tokens[at]].item<double>(), 1e-4) << n;
    ASSERT_EQ(place.top.size(), n < prompt ? 2U : 4U);
    EXPECT_NEAR(place.top[0].logprob, row.max().item<double>(), 1e-4) << n;
    for (size_t k = 1; k < place.top.size(); ++k)
      EXPECT_LE(place.top[k].logprob, place.top[k - 1].logprob);
  }
}

// Whether a request asks for log-probabilities changes none of its tokens.
TEST(Engine, LogprobsOfThePromptChangeNoToken) {
  Engine engine(one_model(), {.chunk = 128});
  for (const int64_t length : {1, 100, 127, 128, 129, 300}) {
    EngineRequest request{.text = varied_text(length), .generate = {.max_tokens = 9}};
    const Answer plain = answer_of(engine, request);
    request.prompt_logprobs = 0;
    const Answer scored = answer_of(engine, request);
    EXPECT_EQ(plain.tokens, scored.tokens) << length;
    EXPECT_EQ(std::ssize(scored.prompts.front().logprobs), length + 1);
    EXPECT_EQ(scored.prompts.front().cached, 0);
  }
}

TEST(Engine, TextsEndForTheReasonThatTheyTell) {
  ModelConfig config = engine_config(64);
  config.tied = true;  // writes the letters of the prompt
  Engine engine(one_model(config));
  const Answer length =
      answer_of(engine, {.text = "ab", .generate = greedy(5), .ignore_end = true});
  EXPECT_EQ(length.choices.at(0).reason, FinishReason::length);
  EXPECT_EQ(length.tokens.at(0).size(), 5U);
  const Answer full =
      answer_of(engine, {.text = "ab", .generate = greedy(500), .ignore_end = true});
  EXPECT_EQ(full.choices.at(0).reason, FinishReason::context);
  EXPECT_EQ(full.tokens.at(0).size(), 62U);  // 3 of the prompt, 61 places, and one behind them
  const std::string text = length.texts.at(0);
  ASSERT_GE(text.size(), 2U);
  const Answer stopped = answer_of(
      engine,
      {.text = "ab",
       .generate = {.sampling = {.temperature = 0}, .max_tokens = 5, .stop = {text.substr(1, 1)}},
       .ignore_end = true});
  EXPECT_EQ(stopped.choices.at(0).reason, FinishReason::stop);
  EXPECT_EQ(stopped.choices.at(0).stop, text.substr(1, 1));
  EXPECT_EQ(stopped.texts.at(0), text.substr(0, text.find(text[1])));
  const Answer none =
      answer_of(engine, {.text = "ab", .generate = greedy(0), .prompt_logprobs = 1});
  EXPECT_EQ(none.outcome(), RequestOutcome::done);
  EXPECT_EQ(none.choices.at(0).tokens, 0);
  EXPECT_EQ(none.prompts.front().logprobs.size(), 3U);
}

TEST(Engine, AReceiverThatThrowsEndsItsOwnRequestAlone) {
  Engine engine(one_model());
  const EngineRequest request{.text = "ab", .generate = greedy(20), .ignore_end = true};
  const Answer alone = answer_of(engine, request);
  engine.submit(request, [](const EngineEvent&) { throw std::runtime_error("gone"); });
  expect_same(answer_of(engine, request), alone, "beside a receiver that throws");
  EXPECT_EQ(engine.statistics().ended[RequestOutcome::cancelled], 1);
}

TEST(Engine, ADrainingEngineFinishesWhatItAcceptedAndAStoppedOneEndsIt) {
  auto finished = std::make_shared<Answer>(), ended = std::make_shared<Answer>();
  Engine engine(one_model());
  engine.submit({.text = "a", .generate = greedy(30)}, into(finished));
  engine.drain();
  EXPECT_ERROR(EngineClosed, engine.submit({.text = "b"}, nobody()), "closes");
  EXPECT_TRUE(engine.wait());
  EXPECT_EQ(finished->outcome(), RequestOutcome::done);
  {
    Engine other(one_model());
    other.submit({.text = "a", .generate = greedy(1000), .ignore_end = true}, into(ended));
    other.submit({.text = "b", .generate = greedy(10)}, nobody());
  }
  EXPECT_EQ(ended->ends.size(), 1U);
}

TEST(Engine, StatisticsCountWhatHappened) {
  Engine engine(one_model(), {.chunk = 128});
  const EngineRequest request{.text = varied_text(299), .generate = greedy(7), .ignore_end = true};
  answer_of(engine, request);
  answer_of(engine, request);
  const EngineStatistics now = engine.statistics();
  EXPECT_EQ(now.accepted, 2);
  EXPECT_EQ(now.running + now.waiting + now.sequences, 0);
  EXPECT_EQ(now.prompt_tokens, 600);
  EXPECT_EQ(now.cached_tokens, 256);
  EXPECT_EQ(now.tokens, 14);
  EXPECT_EQ(now.chunks, 3 + 1);
  EXPECT_EQ(now.steps, 12);
  EXPECT_EQ(now.prefix_queries, 2);
  EXPECT_EQ(now.prefix_hits, 1);
  EXPECT_EQ(now.first_token.count, 2);
  EXPECT_EQ(now.between_tokens.count, 12);
  EXPECT_EQ(now.whole.count, 2);
  EXPECT_EQ(now.ended.at(RequestOutcome::done), 2);
  EXPECT_EQ(now.finished.at(FinishReason::length), 2);
  EXPECT_EQ(now.cache_bytes, now.prefix_bytes);
  EXPECT_GT(now.prefix_bytes, 0);
}

// Two adapters on one base: each request has the text of its own model, and equal numbers lie in
// memory once.
TEST(Engine, ModelsAreChosenByNameAndShareTheirNumbers) {
  ModelConfig cold = engine_config();
  cold.attention.spec.temperature.value = 0.3;
  ModelConfig windowed = engine_config();
  windowed.attention.spec.mask.window = 4;
  const auto models = [&] {
    std::vector<EngineModel> all = one_model();
    all.push_back(engine_model("cold", cold));
    all.push_back(engine_model("windowed", windowed));
    for (EngineModel& model : all)
      if (model.name != "base") model.parent = "base";
    return all;
  };
  std::map<std::string, Answer> alone;
  for (EngineModel& model : models()) {
    const std::string name = model.name;
    std::vector<EngineModel> single;
    single.push_back(std::move(model));
    Engine engine(std::move(single), {.chunk = 128});
    alone[name] = answer_of(engine, {.text = varied_text(300), .generate = greedy(20)});
  }
  EXPECT_NE(alone["base"].tokens, alone["cold"].tokens);
  EXPECT_NE(alone["base"].tokens, alone["windowed"].tokens);
  Engine engine(models(), {.chunk = 128});
  for (int round = 0; round < 2; ++round) {
    std::vector<EngineRequest> requests;
    for (const char* name : {"windowed", "base", "cold", ""})
      requests.push_back({.model = name, .text = varied_text(300), .generate = greedy(20)});
    const std::vector<Answer> answers = answers_of(engine, requests);
    expect_same(answers[0], alone["windowed"], "windowed");
    expect_same(answers[1], alone["base"], "base");
    expect_same(answers[2], alone["cold"], "cold");
    expect_same(answers[3], alone["base"], "without a name");
  }
  std::vector<EngineModel> all = models();
  share_numbers(all[1].loaded.model, all[0].loaded.model);
  for (const Parameter& parameter : all[1].loaded.model.parameters().all())
    EXPECT_EQ(parameter.value.data_ptr(),
              all[0].loaded.model.parameters().find(parameter.name)->value.data_ptr())
        << parameter.name;
}

}  // namespace
}  // namespace fovea::engine_test
