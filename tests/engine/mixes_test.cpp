// A request's text is the same alone and among others, to the bit.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mutex>
#include <random>

#include "tests/engine/tiny_engine.h"

namespace fovea::mixes_test {
namespace {

using namespace fovea::testing;

struct Named {
  std::string name;
  ModelConfig config;
};

std::vector<Named> mechanisms() {
  std::vector<Named> all;
  const auto add = [&](const char* name, auto set) {
    ModelConfig c = engine_config();
    set(c, c.attention.spec);
    all.push_back({name, c});
  };
  const auto focus = [](FocusSpec::Gate gate) {
    FocusSpec f{.gate = gate, .groups = 4, .top_k = 1, .window = 20};
    f.width = 8;
    return f;
  };
  add("plain", [](ModelConfig&, AttentionSpec&) {});
  add("window", [](ModelConfig&, AttentionSpec& s) { s.mask.window = 40; });
  add("learned temperature",
      [](ModelConfig&, AttentionSpec& s) { s.temperature.kind = TemperatureSpec::Kind::learned; });
  add("Multi-Token", [](ModelConfig& c, AttentionSpec& s) {
    s.multi_token.before = {.queries = 3, .keys = 3};
    s.multi_token.after = {.queries = 2, .keys = 3};
    s.head_mix.before = HeadMixSpec::Kind::full;
    c.attention.multi_token.init = KernelStart::uniform;
  });
  add("hard Focus",
      [&](ModelConfig&, AttentionSpec& s) { s.focus = focus(FocusSpec::Gate::hard); });
  add("Focus log with Multi-Token", [&](ModelConfig& c, AttentionSpec& s) {
    s.focus = focus(FocusSpec::Gate::log);
    s.multi_token.before = {.queries = 2, .keys = 3};
    c.attention.multi_token.init = KernelStart::uniform;
  });
  add("differential", [](ModelConfig&, AttentionSpec& s) { s.differential = true; });
  add("streaming",
      [](ModelConfig&, AttentionSpec& s) { s.streaming = {.recent = 30, .start = 2}; });
  return all;
}

/// Requests of lengths around the chunk, with common beginnings; greedy, drawn, and with stops.
std::vector<EngineRequest> pool() {
  std::vector<EngineRequest> requests;
  int64_t n = 0;
  for (const int64_t length : {3, 60, 127, 128, 200, 255, 300, 400}) {
    EngineRequest request{.text = varied_text(length, n % 2),
                          .generate = {.sampling = {.temperature = n % 3 == 0 ? 0.0 : 0.8},
                                       .max_tokens = 3 + n * 5 % 17,
                                       .seed = n}};
    if (n % 4 == 1) request.generate.stop = {"e", "qu"};
    if (n % 3 == 1) request.top_logprobs = 1;
    if (n == 4) request.choices = 3;
    if (n == 5) request.generate.sampling.presence_penalty = 1.5;
    requests.push_back(std::move(request));
    ++n;
  }
  return requests;
}

/// Submits a request that is cancelled at its event number `events`.
void leave_after(Engine& engine, const EngineRequest& request, size_t events) {
  struct Client {
    std::mutex mutex;
    RequestHandle handle;
    size_t events = 0;
  };
  const auto client = std::make_shared<Client>();
  const std::lock_guard lock(client->mutex);
  client->events = events;
  client->handle = engine.submit(request, [client](const EngineEvent&) {
    const std::lock_guard event_lock(client->mutex);
    if (client->events > 0) --client->events;
    if (client->events == 0) client->handle.cancel();
  });
}

// Eight models, 25 mixes each: subsets in any order, some of them cancelled midway, over engines of
// few and of many sequences, with prefixes of earlier mixes and without.
TEST(EngineMixes, ATextIsTheSameAloneAndAmongOthers) {
  const std::vector<EngineRequest> requests = pool();
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (const auto& [name, config] : mechanisms()) {
    const EngineOptions lone{.sequences = 3, .chunk = 128, .prefix_bytes = 0};
    std::vector<Answer> alone;
    {
      Engine engine(one_model(config), lone);
      for (const EngineRequest& request : requests) alone.push_back(answer_of(engine, request));
    }
    for (int round = 0; round < 5; ++round) {
      Engine engine(one_model(config), {.sequences = 3 + static_cast<int64_t>(below(8)),
                                        .chunk = 128,
                                        .prefix_bytes = round % 2 == 0 ? -1 : 0});
      for (int mix = 0; mix < 5; ++mix) {
        std::vector<std::pair<size_t, std::shared_ptr<Answer>>> kept;
        for (size_t count = 3 + below(6); count > 0; --count) {
          const size_t n = below(requests.size());
          const auto answer = std::make_shared<Answer>();
          if (below(5) == 0) {  // its client goes away after a few events
            leave_after(engine, requests[n], below(4));
            continue;
          }
          engine.submit(requests[n], into(answer));
          kept.emplace_back(n, answer);
        }
        ASSERT_TRUE(engine.wait(std::chrono::minutes(5)));
        for (const auto& [n, answer] : kept)
          expect_same(*answer, alone[n], name + ", request " + std::to_string(n));
      }
    }
  }
}

// Where one chunk holds the prompt, engine and generate_text() compute the same.
TEST(EngineMixes, ShortPromptsGiveTheTextOfGenerate) {
  for (const auto& [name, config] : mechanisms()) {
    const Transformer model = tiny(config);
    Engine engine(one_model(config), {.sequences = 8, .chunk = 256});
    const std::vector<EngineRequest> requests = pool();
    const std::vector<Answer> answers = answers_of(engine, requests);
    for (size_t n = 0; n < requests.size(); ++n) {
      if (requests[n].text.size() > 250) continue;
      const GenerateResult expected =
          generate_text(model, bytes(), requests[n].text, requests[n].generate);
      EXPECT_EQ(answers[n].texts.at(0), expected.text) << name << " " << n;
      EXPECT_EQ(answers[n].choices.at(0).reason, expected.reason) << name << " " << n;
      EXPECT_EQ(answers[n].choices.at(0).tokens, expected.tokens) << name << " " << n;
    }
  }
}

}  // namespace
}  // namespace fovea::mixes_test
