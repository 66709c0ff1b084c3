// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/completion_request.h"

#include <algorithm>

#include "fovea/serve/json_fields.h"
#include "fovea/serve/messages.h"

namespace fovea::serve {
namespace {

constexpr int64_t kMostTokens = 1ll << 31;
constexpr int64_t kMostSeed = 1ll << 53;  // JSON of JavaScript holds it exactly
constexpr double kMostTemperature = 2.0, kLeastTopP = 1e-9, kMostPenalty = 2.0;

/// A stop text is short; a long one would make each token of every text slower.
constexpr size_t kMostStopBytes = 1024;

Prompt ids_prompt(const Json& list) {
  Prompt prompt{.ids = token_ids(list, "prompt"), .is_ids = true};
  if (prompt.ids.empty())
    refuse("prompt", "'prompt' must hold at least one token id; a list has none");
  return prompt;
}

std::vector<Prompt> read_prompts(const Json& prompt, int64_t most) {
  if (prompt.is_string()) return {{.text = prompt.get<std::string>()}};
  if (!prompt.is_array() || prompt.empty())
    refuse("prompt",
           "'prompt' must be a text, a list of texts, a list of ids, or a list of lists of ids");
  if (prompt.front().is_number()) return {ids_prompt(prompt)};
  if (static_cast<int64_t>(prompt.size()) > most)
    refuse("prompt", "'prompt' must be a list of at most {} prompts; got {}", most, prompt.size());
  std::vector<Prompt> prompts;
  for (const Json& one : prompt) {
    if (one.is_string() && prompt.front().is_string()) {
      prompts.push_back({.text = one.get<std::string>()});
    } else if (one.is_array() && prompt.front().is_array()) {
      prompts.push_back(ids_prompt(one));
    } else {
      refuse("prompt", "'prompt' must be a list of texts, or of lists of ids; got {} in it",
             one.type_name());
    }
  }
  return prompts;
}

std::vector<std::string> read_stop(JsonFields& fields) {
  const Json* stop = fields.find("stop");
  if (stop == nullptr) return {};
  std::vector<std::string> texts;
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > RequestLimits::kMostStops)
    refuse("stop", "'stop' must hold at most {} texts; got {}", RequestLimits::kMostStops,
           list.size());
  for (const Json& one : list) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty() ||
        one.get_ref<const std::string&>().size() > kMostStopBytes)
      refuse("stop", "'stop' must be a text, or a list of texts, of 1 to {} bytes each",
             kMostStopBytes);
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

void read_sampling(JsonFields& fields, CompletionRequest& request) {
  const auto set = [&](double& value, std::string_view key, double least, double most) {
    value = fields.number(key, least, most).value_or(value);
  };
  set(request.temperature, "temperature", 0, kMostTemperature);
  set(request.top_p, "top_p", kLeastTopP, 1);
  set(request.min_p, "min_p", 0, 1);
  set(request.repetition_penalty, "repetition_penalty", 1e-3, 1e3);
  set(request.frequency_penalty, "frequency_penalty", -kMostPenalty, kMostPenalty);
  set(request.presence_penalty, "presence_penalty", -kMostPenalty, kMostPenalty);
  // vLLM's word for "all" is -1.
  request.top_k = std::max<int64_t>(0, fields.integer("top_k", -1, kMostTokens).value_or(0));
  request.seed = fields.integer("seed", -kMostSeed, kMostSeed);
}

void read_stream(JsonFields& fields, CompletionRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.find("stream_options");
  if (options == nullptr) return;
  JsonFields inner(*options, "stream_options");
  request.include_usage = inner.boolean("include_usage").value_or(false);
  inner.ignore({"include_obfuscation"});
  inner.finish();
  if (!request.stream) refuse("stream_options", "'stream_options' acts with 'stream' true alone");
}

/// Fields that both routes have.
void read_common(JsonFields& fields, CompletionRequest& request) {
  request.model = fields.text("model").value_or("");
  request.choices = fields.integer("n", 1, RequestLimits::kMostChoices).value_or(1);
  request.stop = read_stop(fields);
  request.ignore_end = fields.boolean("ignore_eos").value_or(false);
  read_sampling(fields, request);
  read_stream(fields, request);
  fields.unsupported({"best_of", "logit_bias", "min_tokens", "stop_token_ids", "use_beam_search",
                      "guided_json", "guided_regex", "guided_choice", "guided_grammar"});
  fields.ignore({"user", "metadata", "store", "service_tier", "prompt_cache_key",
                 "prompt_cache_retention", "safety_identifier"});
}

void read_response_format(JsonFields& fields) {
  const Json* format = fields.find("response_format");
  if (format == nullptr) return;
  JsonFields inner(*format, "response_format");
  const std::optional<std::string> type = inner.text("type");
  if (type != "text")
    refuse("response_format", "'response_format.type' must be 'text'; got {}",
           type ? "'" + *type + "'" : "none");
  inner.finish();
}

void read_chat_logprobs(JsonFields& fields, CompletionRequest& request) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, RequestLimits::kMostLogprobs);
  if (top && !wanted) refuse("top_logprobs", "'top_logprobs' acts with 'logprobs' true alone");
  if (wanted) request.logprobs = top.value_or(0);
}

}  // namespace

CompletionRequest read_completion(std::string_view body, const RequestLimits& limits) {
  const Json json = parse_body(body);
  JsonFields fields(json);
  CompletionRequest request;
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) refuse("prompt", "'prompt' is missing");
  request.prompts = read_prompts(*prompt, limits.prompts);
  read_common(fields, request);
  request.max_tokens = fields.integer("max_tokens", 0, kMostTokens);
  request.echo = fields.boolean("echo").value_or(false);
  request.begin_mark = fields.boolean("add_special_tokens").value_or(true);
  request.logprobs = fields.integer("logprobs", 0, RequestLimits::kMostLogprobs);
  fields.unsupported({"suffix"});
  fields.finish();
  if (request.max_tokens == 0 && !request.echo)
    refuse("max_tokens", "'max_tokens' may be 0 with 'echo' alone; without it nothing is answered");
  return request;
}

CompletionRequest read_chat(std::string_view body, const RequestLimits& /*limits*/) {
  const Json json = parse_body(body);
  JsonFields fields(json);
  CompletionRequest request{.kind = CompletionRequest::Kind::chat};
  const Json* messages = fields.find("messages");
  if (messages == nullptr) refuse("messages", "'messages' is missing");
  request.messages = read_messages(*messages);
  read_common(fields, request);
  const auto newer = fields.integer("max_completion_tokens", 1, kMostTokens);
  const auto older = fields.integer("max_tokens", 1, kMostTokens);
  request.max_tokens = newer ? newer : older;
  read_chat_logprobs(fields, request);
  read_response_format(fields);
  const std::optional<std::string> tool_choice = [&]() -> std::optional<std::string> {
    const Json* choice = fields.find("tool_choice");
    if (choice == nullptr) return std::nullopt;
    return choice->is_string() ? choice->get<std::string>() : "an object";
  }();
  if (tool_choice && *tool_choice != "none" && *tool_choice != "auto")
    refuse("tool_choice", "'tool_choice' is not supported: tools are not");
  fields.unsupported({"tools", "functions", "function_call", "modalities", "audio", "prediction",
                      "reasoning_effort", "verbosity", "web_search_options", "chat_template_kwargs",
                      "continue_final_message"});
  fields.ignore({"parallel_tool_calls"});
  fields.finish();
  return request;
}

}  // namespace fovea::serve
