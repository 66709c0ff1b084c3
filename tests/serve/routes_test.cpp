// Routes: shapes of answers, streams, refusals, keys and origins, over a backend without a model.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/routes.h"

#include <gtest/gtest.h>

#include "fake_backend.h"
#include "fovea/serve/page.h"

namespace fovea::serve {
namespace routes_test {

using testing::FakeBackend;
using testing::get;
using testing::post;
using testing::Reply;

/// The JSON of each event of a stream; the mark of the end is the text "[DONE]".
std::vector<Json> events_of(const std::string& stream) {
  std::vector<Json> events;
  for (size_t begin = 0; begin < stream.size();) {
    const size_t end = stream.find("\n\n", begin);
    std::string event = stream.substr(begin, end - begin);
    if (event.starts_with("event: error\n")) event = event.substr(13);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    event = event.substr(6);
    events.push_back(event == "[DONE]" ? Json(event) : Json::parse(event));
    begin = end + 2;
  }
  return events;
}

TEST(Routes, ACompletionHasOpenAisShape) {
  FakeBackend backend;
  const Routes routes(backend, {});
  const Reply reply = post(routes, "/v1/completions", R"({"prompt": "ab", "n": 2, "seed": 7})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["model"], "base");
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("cmpl-"));
  ASSERT_EQ(json["choices"].size(), 2u);
  EXPECT_EQ(json["choices"][1]["index"], 1);
  EXPECT_EQ(json["choices"][1]["text"], "hello");
  EXPECT_EQ(json["choices"][1]["finish_reason"], "stop");
  EXPECT_TRUE(json["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);  // the begin mark too
  EXPECT_EQ(json["usage"]["completion_tokens"], 10);
  EXPECT_EQ(json["usage"]["total_tokens"], 13);
  EXPECT_EQ(backend.requests[0].generate.seed, 7);
  EXPECT_EQ(backend.requests[0].generate.max_tokens, 16);
}

TEST(Routes, ChoicesOfSeveralPromptsAreInTheirOrder) {
  FakeBackend backend;
  const Routes routes(backend, {});
  const Json json = post(routes, "/v1/completions",
                         R"({"prompt": [[97], [98, 99]], "n": 2, "echo": true, "max_tokens": 1})")
                        .json();
  ASSERT_EQ(json["choices"].size(), 4u);
  EXPECT_EQ(json["choices"][1]["text"], "ah");
  EXPECT_EQ(json["choices"][2]["text"], "bch");
  EXPECT_EQ(json["choices"][2]["index"], 2);
  EXPECT_EQ(json["choices"][2]["finish_reason"], "length");
}

TEST(Routes, EchoedLogprobsHaveTheLegacyShape) {
  FakeBackend backend;
  backend.answer = "\xC3\xA9!";  // two bytes of one character are two tokens
  const Routes routes(backend, {});
  const Json lists =
      post(routes, "/v1/completions", R"({"prompt": [97, 256, 98], "echo": true, "logprobs": 2})")
          .json()["choices"][0]["logprobs"];
  EXPECT_EQ(lists["tokens"], Json({"a", "<|begin|>", "b", "bytes:\\xc3", "bytes:\\xa9", "!"}));
  EXPECT_EQ(lists["token_ids"], Json({97, 256, 98, 0xC3, 0xA9, 33}));
  EXPECT_EQ(lists["text_offset"], Json({0, 1, 1, 2, 2, 3}));
  EXPECT_TRUE(lists["token_logprobs"][0].is_null());
  EXPECT_TRUE(lists["top_logprobs"][0].is_null());
  EXPECT_EQ(lists["token_logprobs"][2], -0.5);
  EXPECT_EQ(lists["top_logprobs"][2], (Json{{"x", -0.25}, {"b", -0.5}}));
  EXPECT_TRUE(lists["top_token_ids"][0].is_null());
  EXPECT_EQ(lists["top_token_ids"][2], (Json{{"x", 120}, {"b", 98}}));
}

TEST(Routes, OffsetsWithoutEchoFollowThePrompt) {
  FakeBackend backend;
  const Routes routes(backend, {});
  const Json json = post(routes, "/v1/completions",
                         R"({"prompt": "\u00e9\u00e9", "logprobs": 0, "max_tokens": 2})")
                        .json();
  EXPECT_EQ(json["choices"][0]["logprobs"]["text_offset"], Json({2, 3}));
}

TEST(Routes, AChatHasOpenAisShape) {
  FakeBackend backend;
  const Routes routes(backend, {});
  const Json json = post(routes, "/v1/chat/completions",
                         R"({"messages": [{"role": "user", "content": "hi"}], "logprobs": true,
                             "top_logprobs": 1, "model": "adapter"})")
                        .json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "adapter");
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "hello");
  const Json& first = choice["logprobs"]["content"][0];
  EXPECT_EQ(first["token"], "h");
  EXPECT_EQ(first["bytes"], Json({104}));
  EXPECT_EQ(first["top_logprobs"][0]["token"], "x");
  EXPECT_EQ(backend.requests[0].generate.max_tokens, 64);  // all that fit
}

TEST(Routes, AChatStreamsRoleTextReasonUsageAndDone) {
  FakeBackend backend;
  const Routes routes(backend, {});
  const Reply reply = post(routes, "/v1/chat/completions",
                           R"({"messages": [{"role": "user", "content": "hi"}], "stream": true,
                               "stream_options": {"include_usage": true}})");
  ASSERT_TRUE(reply.stream);
  const std::vector<Json> events = events_of(reply.body);
  ASSERT_GE(events.size(), 5u);
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  std::string text;
  for (const Json& event : events)
    if (event.is_object() && !event["choices"].empty())
      text += event["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(text, "hello");
  const Json& last = events[events.size() - 3];
  EXPECT_EQ(last["choices"][0]["delta"], Json::object());
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(last["usage"].is_null());
  EXPECT_EQ(events[events.size() - 2]["choices"], Json::array());
  EXPECT_EQ(events[events.size() - 2]["usage"]["completion_tokens"], 5);
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST(Routes, AStreamTellsEachTokenAsItComes) {
  FakeBackend backend;
  backend.at_once = false;
  const Routes routes(backend, {});
  int woken = 0;
  auto answer = routes.answer(
      {.method = "POST", .target = "/v1/completions", .body = R"({"prompt": "a", "stream": true})"},
      {}, [&] { ++woken; });
  Exchange& exchange = *std::get<std::unique_ptr<Exchange>>(answer);
  EXPECT_EQ(exchange.take_text(), "");
  const EngineEvents& tell = backend.waiting[0];
  tell(PromptRead{.tokens = 2});
  tell(TokenWritten{.token = 'h', .text = "h"});
  EXPECT_EQ(woken, 1);  // once until the events are taken
  exchange.collect();
  EXPECT_EQ(events_of(exchange.take_text())[0]["choices"][0]["text"], "h");
  tell(TokenWritten{.token = 'i', .text = ""});
  EXPECT_EQ(woken, 2);
  exchange.collect();
  EXPECT_EQ(exchange.take_text(), "");
  tell(ChoiceEnded{.text = "i", .reason = FinishReason::length});
  tell(RequestEnded{});
  exchange.collect();
  EXPECT_TRUE(exchange.finished());
  const std::vector<Json> events = events_of(exchange.take_text());
  EXPECT_EQ(events[0]["choices"][0]["text"], "i");
  EXPECT_EQ(events[0]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST(Routes, AFailedStreamEndsWithAnErrorEventAndWithoutDone) {
  FakeBackend backend;
  backend.outcome = RequestOutcome::failed;
  const Routes routes(backend, {});
  const Reply reply = post(routes, "/v1/completions", R"({"prompt": "a", "stream": true})");
  EXPECT_NE(reply.body.find("event: error\ndata: {\"error\""), std::string::npos) << reply.body;
  EXPECT_EQ(reply.body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(post(routes, "/v1/completions", R"({"prompt": "a"})").status, 500);
}

TEST(Routes, WhereMemoryWasShortTheClientMayComeAgain) {
  FakeBackend backend;
  backend.outcome = RequestOutcome::failed;
  backend.no_memory = true;
  const Routes routes(backend, {});
  EXPECT_EQ(post(routes, "/v1/completions", R"({"prompt": "a"})").status, 503);
  EXPECT_NE(post(routes, "/v1/completions", R"({"prompt": "a", "stream": true})")
                .body.find("overloaded_error"),
            std::string::npos);
}

TEST(Routes, ADroppedExchangeCancelsItsRequests) {
  FakeBackend backend;
  backend.at_once = false;
  const Routes routes(backend, {});
  {
    auto answer = routes.answer(
        {.method = "POST", .target = "/v1/completions", .body = R"({"prompt": ["a", "b"]})"}, {},
        [] {});
    EXPECT_EQ(backend.cancelled, 0);
  }
  EXPECT_EQ(backend.cancelled, 2);
  backend.waiting[0](PromptRead{});  // late events meet nobody
}

TEST(Routes, AFullQueueAndAnEndingServerSayWhenToComeAgain) {
  FakeBackend backend;
  backend.busy_after = 1;
  const Routes routes(backend, {});
  const auto answer = routes.answer(
      {.method = "POST", .target = "/v1/completions", .body = R"({"prompt": ["a", "b"]})"}, {},
      [] {});
  const HttpResponse& response = std::get<HttpResponse>(answer);
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.headers[0].first, "Retry-After");
  EXPECT_EQ(backend.cancelled, 1);  // all prompts or none
  backend.closed = true;
  backend.busy_after = -1;
  EXPECT_EQ(post(routes, "/v1/completions", R"({"prompt": "a"})").status, 503);
}

TEST(Routes, ATooLongPromptIsRefusedWithBothNumbers) {
  FakeBackend backend;
  const Routes routes(backend, {});
  const Json error = post(routes, "/v1/completions", Json{{"prompt", std::string(100, 'a')}}.dump())
                         .json()["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_NE(error["message"].get<std::string>().find("64"), std::string::npos);
  EXPECT_NE(error["message"].get<std::string>().find("101"), std::string::npos);
}

TEST(Routes, UnknownModelsRoutesAndMethodsHaveTheirStatus) {
  FakeBackend backend;
  const Routes routes(backend, {});
  const Reply unknown = post(routes, "/v1/completions", R"({"prompt": "a", "model": "gpt"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json()["error"]["code"], "model_not_found");
  EXPECT_EQ(get(routes, "/v1/models/adapter").json()["parent"], "base");
  EXPECT_EQ(get(routes, "/v1/models/none").status, 404);
  EXPECT_EQ(get(routes, "/v2").status, 404);
  EXPECT_EQ(get(routes, "/page/../../etc/passwd").status, 404);
  EXPECT_EQ(get(routes, "/v1/completions").status, 405);
  EXPECT_EQ(post(routes, "/health", "").status, 405);
}

TEST(Routes, AConversationWithoutATemplateIsRefusedByName) {
  FakeBackend backend;
  backend.no_chat = "it has no chat template";
  const Routes routes(backend, {});
  const Reply reply =
      post(routes, "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("no chat template"), std::string::npos);
}

TEST(Routes, ModelsAndHealthAreTold) {
  FakeBackend backend;
  Routes routes(backend, {});
  const Json models = get(routes, "/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "base");
  EXPECT_TRUE(models["data"][0]["parent"].is_null());
  EXPECT_EQ(models["data"][0]["max_model_len"], 64);
  EXPECT_EQ(models["data"][0]["fovea"]["signed_weights"], true);
  EXPECT_EQ(get(routes, "/health").status, 200);
  routes.set_draining();
  EXPECT_EQ(get(routes, "/health").status, 503);
}

TEST(Routes, TokensGoThereAndBack) {
  FakeBackend backend;
  const Routes routes(backend, {});
  const Json tokens =
      post(routes, "/tokenize", R"({"prompt": "hi", "return_token_strs": true})").json();
  EXPECT_EQ(tokens["count"], 3);
  EXPECT_EQ(tokens["tokens"], Json({256, 104, 105}));
  EXPECT_EQ(tokens["token_strs"], Json({"<|begin|>", "h", "i"}));
  EXPECT_EQ(tokens["max_model_len"], 64);
  EXPECT_EQ(post(routes, "/detokenize", R"({"tokens": [104, 105]})").json()["prompt"], "hi");
  EXPECT_EQ(post(routes, "/detokenize", R"({"tokens": [300]})").status, 400);
  EXPECT_EQ(post(routes, "/tokenize", R"({"messages": [{"role": "user", "content": "abc"}]})")
                .json()["count"],
            3);
}

TEST(Routes, AttentionHasTheShapeOfItsPage) {
  FakeBackend backend;
  const Routes routes(backend, {});
  const Reply reply =
      post(routes, "/v1/attention",
           R"({"text": "abc", "rows": [-1, 3, 1], "layers": [1], "heads": [2, 0]})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(json["tokens"], Json({"<|begin|>", "a", "b", "c"}));
  EXPECT_EQ(json["rows"], Json({3, 1}));  // each place once
  ASSERT_EQ(json["layers"].size(), 1u);
  const Json& layer = json["layers"][0];
  EXPECT_EQ(layer["layer"], 1);
  EXPECT_EQ(layer["signed"], true);
  EXPECT_TRUE(layer["focus"].is_null());
  ASSERT_EQ(layer["heads"].size(), 2u);
  EXPECT_EQ(layer["heads"][0]["head"], 0);
  EXPECT_EQ(layer["heads"][1]["head"], 2);
  EXPECT_EQ(layer["heads"][0]["rows"][1],
            (Json{{"row", 1}, {"keys", {0}}, {"weights", {0.75}}, {"rest", 0.25}}));
  EXPECT_EQ(layer["pruned"][0], (Json{{"row", 3}, {"visible", 3}, {"dropped", 1}, {"keys", {1}}}));
  EXPECT_EQ(json["usage"]["prompt_tokens"], 4);
}

TEST(Routes, AttentionOfPlacesThatDoNotExistIsRefused) {
  FakeBackend backend;
  const Routes routes(backend, {});
  EXPECT_EQ(post(routes, "/v1/attention", R"({"text": "abc", "rows": [4]})").status, 400);
  EXPECT_EQ(post(routes, "/v1/attention", R"({"text": "abc", "layers": [2]})").status, 400);
  EXPECT_EQ(post(routes, "/v1/attention", R"({"text": "abc", "heads": [-1]})").status, 400);
  EXPECT_EQ(post(routes, "/v1/attention", R"({"ids": [900]})").status, 400);
}

TEST(Access, AKeyIsNeededWhereOneIsSet) {
  FakeBackend backend;
  const Routes routes(backend, {.api_keys = {"one", "two"}});
  const auto status = [&](std::string authorization, std::string target = "/v1/models") {
    return testing::ask(routes, {.method = "GET",
                                 .target = std::move(target),
                                 .authorization = std::move(authorization)})
        .status;
  };
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status("Bearer three"), 401);
  EXPECT_EQ(status("Bearer on"), 401);
  EXPECT_EQ(status("Bearer "), 401);
  EXPECT_EQ(status("one"), 401);
  EXPECT_EQ(status("Bearer two"), 200);
  EXPECT_EQ(status("bearer one"), 200);
  EXPECT_EQ(status("", "/health"), 200);
}

TEST(Access, EqualTextsAreEqualAndNoOthers) {
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  EXPECT_FALSE(equal_in_constant_time("secretsecret", "secret"));
  EXPECT_FALSE(equal_in_constant_time("secre", "secret"));
  EXPECT_FALSE(equal_in_constant_time("", "secret"));
}

TEST(Access, WebPagesOfOtherOriginsAreRefusedUnlessAllowed) {
  FakeBackend backend;
  const Routes closed(backend, {});
  const Routes open(backend, {.origins = {"https://example.org"}});
  const auto request = [](std::string origin, std::string host, std::string method = "GET") {
    return HttpRequest{.method = std::move(method),
                       .target = "/v1/models",
                       .host = std::move(host),
                       .origin = std::move(origin)};
  };
  EXPECT_FALSE(closed.refuse_head(request("http://127.0.0.1:8000", "127.0.0.1:8000")));
  EXPECT_FALSE(closed.refuse_head(request("http://localhost:8000", "localhost:8000")));
  // A name of the attacker's that leads to this machine.
  EXPECT_EQ(closed.refuse_head(request("http://evil.org:8000", "evil.org:8000"))->status, 403);
  EXPECT_EQ(closed.refuse_head(request("https://example.org", "127.0.0.1:8000"))->status, 403);
  EXPECT_EQ(closed.refuse_head(request("null", "127.0.0.1:8000"))->status, 403);
  EXPECT_FALSE(open.refuse_head(request("https://example.org", "127.0.0.1:8000")));
  EXPECT_EQ(open.refuse_head(request("https://example.org", "x", "OPTIONS"))->status, 204);
  const auto headers = open.headers_for(request("https://example.org", "x"));
  EXPECT_TRUE(std::ranges::any_of(
      headers, [](const auto& h) { return h.first == "Access-Control-Allow-Origin"; }));
  for (const auto& [name, value] : closed.headers_for(request("https://example.org", "x")))
    EXPECT_FALSE(name.starts_with("Access-Control")) << name;
}

TEST(Metrics, AreTextForPrometheus) {
  FakeBackend backend;
  const Routes routes(backend, {});
  const std::string text = get(routes, "/metrics").body;
  EXPECT_NE(text.find("\nvllm:num_requests_running{model_name=\"base\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find("vllm:time_to_first_token_seconds_bucket{model_name=\"base\",le=\"+Inf\"} 0"),
            std::string::npos);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    EXPECT_TRUE(line.starts_with("# ") || line.find("} ") != line.npos) << line;
    begin = end + 1;
  }
}

TEST(Page, ThePolicyAllowsThisServerAlone) {
  FakeBackend backend;
  const Routes routes(backend, {});
  const Reply page = get(routes, "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.body.find("<html"), std::string::npos);
  // Inline scripts and styles would not run.
  EXPECT_EQ(page.body.find("<style"), std::string::npos);
  EXPECT_EQ(page.body.find(" style="), std::string::npos);
  EXPECT_EQ(page.body.find("onclick"), std::string::npos);
  EXPECT_EQ(media_type("a.js"), "text/javascript; charset=utf-8");
}

}  // namespace routes_test
}  // namespace fovea::serve
