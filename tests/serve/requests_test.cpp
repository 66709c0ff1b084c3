// Bodies of requests: what is taken, and how each mistake is named.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>

#include "fovea/serve/completion_request.h"
#include "fovea/serve/json_fields.h"
#include "fovea/serve/small_requests.h"

namespace fovea::serve {
namespace requests_test {

/// The problem that `read` throws.
Problem problem_of_reading(const std::function<void()>& read) {
  try {
    read();
  } catch (const Problem& problem) {
    return problem;
  }
  return {0, "none", "nothing was thrown"};
}

struct Malformed {
  std::string_view body, param, says;
};

void expect_refused(const std::vector<Malformed>& cases,
                    const std::function<void(std::string_view)>& read) {
  for (const Malformed& one : cases) {
    const Problem problem = problem_of_reading([&] { read(one.body); });
    EXPECT_EQ(problem.status, 400) << one.body;
    EXPECT_EQ(problem.type, "invalid_request_error") << one.body;
    EXPECT_EQ(problem.param, one.param) << one.body << ": " << problem.message;
    EXPECT_NE(problem.message.find(one.says), std::string::npos)
        << one.body << ": " << problem.message;
  }
}

TEST(CompletionRequests, EachMalformedBodyIsRefusedByItsField) {
  expect_refused(
      {{"", "", "empty body"},
       {"   \n", "", "empty body"},
       {"{", "", "JSON"},
       {"[1]", "", "array"},
       {"\"text\"", "", "string"},
       {"{\"prompt\": \"a\"} x", "", "JSON"},
       {"{\"prompt\": \"\xff\"}", "", "JSON"},
       {"{\"prompt\": \"\\ud800\"}", "", "JSON"},
       {"{\"prompt\": 1e999}", "", "JSON"},
       {"{}", "prompt", "missing"},
       {R"({"prompt": null})", "prompt", "missing"},
       {R"({"prompt": 3})", "prompt", "list of"},
       {R"({"prompt": []})", "prompt", "list of"},
       {R"({"prompt": [[]]})", "prompt", "at least one"},
       {R"({"prompt": [1, "a"]})", "prompt", "token ids"},
       {R"({"prompt": ["a", [1]]})", "prompt", "got array"},
       {R"({"prompt": [-1]})", "prompt", "got -1"},
       {R"({"prompt": [1.5]})", "prompt", "got 1.5"},
       {R"({"prompt": [99999999999]})", "prompt", "99999999999"},
       {R"({"prompt": "a", "temperature": -0.1})", "temperature", "from 0 to 2"},
       {R"({"prompt": "a", "temperature": "hot"})", "temperature", "hot"},
       {R"({"prompt": "a", "top_p": 0})", "top_p", "top_p"},
       {R"({"prompt": "a", "n": 0})", "n", "from 1 to 16"},
       {R"({"prompt": "a", "n": 2.5})", "n", "2.5"},
       {R"({"prompt": "a", "n": true})", "n", "true"},
       {R"({"prompt": "a", "max_tokens": -1})", "max_tokens", "-1"},
       {R"({"prompt": "a", "max_tokens": 0})", "max_tokens", "'echo'"},
       {R"({"prompt": "a", "logprobs": 21})", "logprobs", "to 20"},
       {R"({"prompt": "a", "logprobs": true})", "logprobs", "whole number"},
       {R"({"prompt": "a", "stop": ""})", "stop", "1 to"},
       {R"({"prompt": "a", "stop": [1]})", "stop", "text"},
       {R"({"prompt": "a", "stream": "yes"})", "stream", "true or false"},
       {R"({"prompt": "a", "stream_options": {"include_usage": true}})", "stream_options",
        "'stream'"},
       {R"({"prompt": "a", "stream": true, "stream_options": {"x": 1}})", "stream_options.x",
        "unknown"},
       {R"({"prompt": "a", "best_of": 2})", "best_of", "not supported"},
       {R"({"prompt": "a", "suffix": "b"})", "suffix", "not supported"},
       {R"({"prompt": "a", "logit_bias": {"1": 2}})", "logit_bias", "not supported"},
       {R"({"prompt": "a", "temprature": 1})", "temprature", "did you mean 'temperature'"},
       {R"({"prompt": "a", "seed": 1e300})", "seed", "whole number"},
       {R"({"prompt": "a", "model": 7})", "model", "text"},
       {R"({"prompt": "a", "frequency_penalty": 3})", "frequency_penalty", "from -2 to 2"}},
      [](std::string_view body) { read_completion(body); });
}

TEST(CompletionRequests, EachMalformedConversationIsRefusedByItsField) {
  expect_refused(
      {{"{}", "messages", "missing"},
       {R"({"messages": []})", "messages", "1 to"},
       {R"({"messages": "hi"})", "messages", "list"},
       {R"({"messages": ["hi"]})", "messages[0]", "object"},
       {R"({"messages": [{"content": "hi"}]})", "messages[0]", "role"},
       {R"({"messages": [{"role": "user"}]})", "messages[0]", "content"},
       {R"({"messages": [{"role": "user", "content": 3}]})", "messages[0].content", "text"},
       {R"({"messages": [{"role": "tool", "content": "3"}]})", "messages[0]", "tools"},
       {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
        "messages[0].content[0]", "text alone"},
       {R"({"messages": [{"role": "user", "content": "a", "oops": 1}]})", "messages[0].oops",
        "unknown"},
       {R"({"messages": [{"role": "user", "content": "a"}], "tools": [{}]})", "tools",
        "not supported"},
       {R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"})",
        "tool_choice", "not supported"},
       {R"({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}})",
        "response_format", "json_object"},
       {R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2})", "top_logprobs",
        "'logprobs'"},
       {R"({"messages": [{"role": "user", "content": "a"}], "prompt": "a"})", "prompt", "unknown"}},
      [](std::string_view body) { read_chat(body); });
}

TEST(CompletionRequests, NullMeansAbsentEverywhere) {
  const CompletionRequest r = read_completion(
      R"({"prompt": "a", "model": null, "max_tokens": null, "temperature": null, "n": null,
          "stop": null, "seed": null, "logprobs": null, "stream": null, "stream_options": null,
          "best_of": null, "logit_bias": null, "user": null, "echo": null, "suffix": null})");
  EXPECT_EQ(r.temperature, 1.0);
  EXPECT_EQ(r.choices, 1);
  EXPECT_FALSE(r.max_tokens || r.seed || r.logprobs || r.stream || r.echo);
}

TEST(CompletionRequests, PromptsAreTextsOrIdsOrListsOfEither) {
  EXPECT_EQ(read_completion(R"({"prompt": "a"})").prompts[0].text, "a");
  EXPECT_EQ(read_completion(R"({"prompt": ["a", "b"]})").prompts[1].text, "b");
  EXPECT_EQ(read_completion(R"({"prompt": [1, 2]})").prompts[0].ids, (std::vector<int32_t>{1, 2}));
  const CompletionRequest both = read_completion(R"({"prompt": [[1], [2, 3]]})");
  ASSERT_EQ(both.prompts.size(), 2u);
  EXPECT_EQ(both.prompts[1].ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(problem_of_reading([] {
              read_completion(R"({"prompt": ["a", "b", "c"]})", {.prompts = 2});
            }).param,
            "prompt");
}

TEST(CompletionRequests, HarmlessFieldsAndSwitchedOffOnesAreTaken) {
  const CompletionRequest r = read_chat(
      R"({"messages": [{"role": "developer", "content": "be brief", "name": "me"},
                       {"role": "user", "content": [{"type": "text", "text": "a"},
                                                    {"type": "text", "text": "b"}]},
                       {"role": "assistant", "content": null}],
          "user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto",
          "tools": [], "logit_bias": {}, "parallel_tool_calls": true, "tool_choice": "auto",
          "max_completion_tokens": 5, "max_tokens": 7, "logprobs": true, "top_logprobs": 3,
          "response_format": {"type": "text"}})");
  EXPECT_EQ(r.messages[0].role, "system");
  EXPECT_EQ(r.messages[1].content, "ab");
  EXPECT_EQ(r.max_tokens, 5);
  EXPECT_EQ(r.logprobs, 3);
}

TEST(CompletionRequests, DeepJsonIsRefusedBeforeItIsParsed) {
  const std::string deep(100'000, '[');
  EXPECT_NE(problem_of_reading([&] { read_completion(deep); }).message.find("levels"),
            std::string::npos);
}

TEST(SmallRequests, EachMistakeIsNamed) {
  expect_refused({{"{}", "text", "exactly one"},
                  {R"({"text": "a", "ids": [1]})", "text", "exactly one"},
                  {R"({"text": "a", "k": 0})", "k", "from 1"},
                  {R"({"text": "a", "rows": [0.5]})", "rows", "whole"},
                  {R"({"text": "a", "rows": 5})", "rows", "list"},
                  {R"({"text": "a", "layer": [0]})", "layer", "did you mean 'layers'"}},
                 [](std::string_view body) { read_attention(body); });
  expect_refused(
      {{"{}", "prompt", "exactly one"},
       {R"({"prompt": 1})", "prompt", "text"},
       {R"({"prompt": "a", "add_generation_prompt": false})", "add_generation_prompt", "true"}},
      [](std::string_view body) { read_tokenize(body); });
  expect_refused({{"{}", "tokens", "missing"},
                  {R"({"tokens": "a"})", "tokens", "list"},
                  {R"({"tokens": [-4]})", "tokens", "-4"}},
                 [](std::string_view body) { read_detokenize(body); });
}

}  // namespace requests_test
}  // namespace fovea::serve
