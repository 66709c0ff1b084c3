// A backend that answers with a text that the test sets, at once and without a model.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "fovea/serve/backend.h"
#include "fovea/serve/routes.h"

namespace fovea::testing {

class FakeBackend final : public serve::Backend {
 public:
  FakeBackend() {
    serve::ModelFacts base{.name = "base", .root = "runs/base"};
    base.context = 64;
    base.vocabulary = 259;
    base.layers = 2;
    base.heads = 4;
    base.pipelines = {"plain", "plain"};
    base.signed_weights = {false, true};
    serve::ModelFacts adapter = base;
    adapter.name = "adapter";
    adapter.parent = "base";
    models_ = {base, adapter};
  }

  std::span<const serve::ModelFacts> models() const override { return models_; }
  const Tokenizer& tokenizer() const override { return *byte_tokenizer(); }
  std::vector<int32_t> encode_chat(std::vector<ChatMessage> messages) const override {
    std::vector<int32_t> tokens;
    for (const ChatMessage& message : messages) tokenizer().append(message.content, tokens);
    return tokens;
  }
  std::string why_no_chat() const override { return no_chat; }
  int64_t queue() const override { return 8; }

  std::function<void()> submit(EngineRequest request, EngineEvents events) override {
    if (busy_after >= 0 && std::ssize(requests) >= busy_after)
      throw EngineBusy("[engine] expected at most 8 waiting requests; got one more");
    if (closed) throw EngineClosed("[engine] it accepts no more");
    if (std::ssize(request.tokens) > models_[0].context)
      throw PromptTooLong("[engine] too long", std::ssize(request.tokens), models_[0].context);
    requests.push_back(request);
    waiting.push_back(std::move(events));
    if (at_once) finish(waiting.size() - 1);
    return [this] { ++cancelled; };
  }
  /// Delivers the events of request n.
  void finish(size_t n) {
    const EngineRequest& request = requests[n];
    const EngineEvents& tell = waiting[n];
    PromptRead read{.tokens = std::ssize(request.tokens), .cached = 1};
    if (request.prompt_logprobs)
      for (size_t i = 0; i < request.tokens.size(); ++i)
        read.logprobs.push_back(i == 0 ? std::nullopt : place(request.tokens[i], request));
    tell(read);
    const auto text = std::string_view(answer).substr(
        0, std::min<size_t>(answer.size(), static_cast<size_t>(request.generate.max_tokens)));
    for (int64_t choice = 0; choice < request.choices; ++choice) {
      for (const char c : text)
        tell(TokenWritten{.choice = choice,
                          .token = static_cast<unsigned char>(c),
                          .text = std::string(1, c),
                          .logprobs = request.top_logprobs
                                          ? place(static_cast<unsigned char>(c), request)
                                          : std::nullopt});
      tell(ChoiceEnded{
          .choice = choice,
          .reason = text.size() < answer.size() ? FinishReason::length : FinishReason::end,
          .tokens = std::ssize(text)});
    }
    tell(RequestEnded{.outcome = outcome,
                      .error = "[engine] the model broke",
                      .no_memory = no_memory,
                      .prompt_tokens = read.tokens,
                      .cached_tokens = 1,
                      .tokens = request.choices * std::ssize(text)});
  }
  std::function<void()> attention_rows(AttentionRowsRequest request,
                                       AttentionRowsDone done) override {
    AttentionRows rows{.tokens = request.tokens};
    for (int64_t layer = 0; layer < 2; ++layer) {
      rows.inspected.layers.push_back(
          {.layer = layer, .pipeline = "plain", .entropy = {1, 1, 1, 1}});
      if (std::ranges::find(request.layers, layer) == request.layers.end()) continue;
      for (const int64_t head : request.heads)
        for (const int64_t query : request.queries)
          rows.rows.push_back({.layer = layer,
                               .head = head,
                               .query = query,
                               .keys = {{.key = 0, .weight = 0.75}},
                               .rest = 0.25});
    }
    rows.pruned.push_back({.layer = 1, .query = request.queries[0], .visible = 3, .keys = {1}});
    done(nullptr, rows);
    return [this] { ++cancelled; };
  }
  EngineStatistics statistics() const override { return {.waiting = 1, .running = 2}; }
  void drain() override { closed = true; }
  void stop() override {}

  std::string answer = "hello", no_chat;
  RequestOutcome outcome = RequestOutcome::done;
  bool at_once = true, closed = false, no_memory = false;
  int64_t busy_after = -1;
  int cancelled = 0;
  std::vector<EngineRequest> requests;
  std::vector<EngineEvents> waiting;

 private:
  static std::optional<PlaceLogprobs> place(int32_t token, const EngineRequest& /*request*/) {
    return PlaceLogprobs{.token = {token, -0.5}, .top = {{'x', -0.25}, {token, -0.5}}};
  }

  std::vector<serve::ModelFacts> models_;
};

/// One request, answered whole: its status, its body, and whether it was a stream.
struct Reply {
  int status = 0;
  std::string body;
  bool stream = false;

  serve::Json json() const { return serve::Json::parse(body); }
};

inline Reply ask(const serve::Routes& routes, serve::HttpRequest request) {
  auto answer = routes.answer(request, {}, [] {});
  if (auto* response = std::get_if<serve::HttpResponse>(&answer))
    return {response->status, response->body};
  serve::Exchange& exchange = *std::get<std::unique_ptr<serve::Exchange>>(answer);
  std::string text;
  try {
    exchange.collect();
  } catch (const std::exception& error) {
    const serve::Problem problem = routes.report(request, error);
    if (exchange.streams()) text = exchange.take_text();
    if (!text.empty()) return {200, text + serve::error_event_text(problem), true};
    return {problem.status, serve::json_text(problem.to_json())};
  }
  if (exchange.streams()) return {200, exchange.take_text(), true};
  const serve::HttpResponse response = exchange.response();
  return {response.status, response.body};
}

inline Reply post(const serve::Routes& routes, std::string target, std::string body) {
  return ask(routes, {.method = "POST", .target = std::move(target), .body = std::move(body)});
}

inline Reply get(const serve::Routes& routes, std::string target) {
  return ask(routes, {.method = "GET", .target = std::move(target)});
}

}  // namespace fovea::testing
