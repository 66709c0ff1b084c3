// Engines over models small enough for tests, and the answers that they give.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fovea/engine/engine.h"
#include "tests/infer/tiny_writer.h"

namespace fovea::testing {

inline ModelConfig engine_config(int64_t context = 1024) {
  ModelConfig c = writer_config();
  c.context = context;
  c.tied = false;  // else a token makes itself the next one
  return c;
}

inline EngineModel engine_model(const std::string& name, const ModelConfig& config) {
  Transformer model = tiny(config);
  const ModelConfig resolved = model.config();
  return {.name = name,
          .loaded = {.config = resolved,
                     .model = std::move(model),
                     .tokenizer = byte_tokenizer(),
                     .chat_template = ""}};
}

inline std::vector<EngineModel> one_model(const ModelConfig& config = engine_config()) {
  std::vector<EngineModel> models;
  models.push_back(engine_model("base", config));
  return models;
}

/// What an engine told of one request.
struct Answer {
  std::vector<PromptRead> prompts;
  std::map<int64_t, std::string> texts;
  std::map<int64_t, std::vector<int32_t>> tokens;
  std::map<int64_t, std::vector<PlaceLogprobs>> logprobs;
  std::map<int64_t, ChoiceEnded> choices;
  std::vector<RequestEnded> ends;

  void add(const EngineEvent& event) {
    EXPECT_TRUE(ends.empty()) << "an event after the last";
    if (const auto* read = std::get_if<PromptRead>(&event)) prompts.push_back(*read);
    if (const auto* token = std::get_if<TokenWritten>(&event)) {
      EXPECT_EQ(prompts.size(), 1U);
      EXPECT_EQ(choices.count(token->choice), 0U) << "a token after the end";
      texts[token->choice] += token->text;
      tokens[token->choice].push_back(token->token);
      if (token->logprobs) logprobs[token->choice].push_back(*token->logprobs);
    }
    if (const auto* ended = std::get_if<ChoiceEnded>(&event)) {
      texts[ended->choice] += ended->text;
      EXPECT_TRUE(choices.emplace(ended->choice, *ended).second) << "a choice ended twice";
    }
    if (const auto* end = std::get_if<RequestEnded>(&event)) ends.push_back(*end);
  }
  RequestOutcome outcome() const {
    EXPECT_EQ(ends.size(), 1U);
    return ends.empty() ? RequestOutcome::failed : ends.front().outcome;
  }
};

/// Adds events to an answer that outlives them.
inline EngineEvents into(const std::shared_ptr<Answer>& answer) {
  return [answer](const EngineEvent& event) { answer->add(event); };
}

/// The answers to requests that were submitted together.
inline std::vector<Answer> answers_of(Engine& engine, const std::vector<EngineRequest>& requests) {
  std::vector<std::shared_ptr<Answer>> pending;
  for (const EngineRequest& request : requests) {
    pending.push_back(std::make_shared<Answer>());
    engine.submit(request, into(pending.back()));
  }
  EXPECT_TRUE(engine.wait(std::chrono::minutes(5)));
  std::vector<Answer> answers;
  for (const auto& answer : pending) answers.push_back(*answer);
  return answers;
}

inline Answer answer_of(Engine& engine, const EngineRequest& request) {
  return answers_of(engine, {request}).front();
}

/// Varied text of so many bytes; texts of one salt begin alike.
inline std::string varied_text(int64_t length, int64_t salt = 0) {
  std::string text;
  for (int64_t i = 0; i < length; ++i)
    text += static_cast<char>('a' + (i * i + salt * (i + 3)) % 26);
  return text;
}

inline void expect_same(const Answer& got, const Answer& alone, const std::string& what) {
  EXPECT_EQ(got.outcome(), RequestOutcome::done) << what;
  EXPECT_EQ(got.texts, alone.texts) << what;
  EXPECT_EQ(got.tokens, alone.tokens) << what;
  ASSERT_EQ(got.choices.size(), alone.choices.size()) << what;
  for (const auto& [choice, ended] : alone.choices) {
    EXPECT_EQ(got.choices.at(choice).reason, ended.reason) << what;
    EXPECT_EQ(got.choices.at(choice).stop, ended.stop) << what;
  }
  ASSERT_EQ(got.logprobs.size(), alone.logprobs.size()) << what;
  for (const auto& [choice, places] : alone.logprobs) {
    ASSERT_EQ(got.logprobs.at(choice).size(), places.size()) << what;
    for (size_t n = 0; n < places.size(); ++n)
      EXPECT_EQ(got.logprobs.at(choice)[n].token.logprob, places[n].token.logprob)
          << what << ", token " << n;
  }
}

}  // namespace fovea::testing
