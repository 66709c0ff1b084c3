// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/small_requests.h"

#include "fovea/serve/json_fields.h"
#include "fovea/serve/messages.h"

namespace fovea::serve {
namespace {

constexpr size_t kMostNumbers = 4096;  // layers, heads

std::vector<int32_t> read_ids(JsonFields& fields, std::string_view key) {
  const Json* list = fields.find(key);
  if (list == nullptr) return {};
  if (!list->is_array()) refuse(key, "'{}' must be a list of token ids", key);
  return token_ids(*list, key);
}

}  // namespace

AttentionRequest read_attention(std::string_view body) {
  const Json json = parse_body(body);
  JsonFields fields(json);
  AttentionRequest request;
  request.model = fields.text("model").value_or("");
  request.text = fields.text("text");
  request.ids = read_ids(fields, "ids");
  std::vector<int64_t> rows = fields.integers("rows", AttentionRequest::kMostRows);
  if (!rows.empty()) request.rows = std::move(rows);
  request.layers = fields.integers("layers", kMostNumbers);
  request.heads = fields.integers("heads", kMostNumbers);
  request.keys = fields.integer("k", 1, AttentionRequest::kMostKeys).value_or(request.keys);
  fields.ignore({"user", "metadata"});
  fields.finish();
  if (request.text.has_value() != request.ids.empty())
    refuse("text", "expected exactly one of 'text' and 'ids'");
  return request;
}

TokenizeRequest read_tokenize(std::string_view body) {
  const Json json = parse_body(body);
  JsonFields fields(json);
  TokenizeRequest request;
  request.model = fields.text("model").value_or("");
  const std::optional<std::string> prompt = fields.text("prompt");
  const Json* messages = fields.find("messages");
  if (prompt.has_value() == (messages != nullptr))
    refuse("prompt", "expected exactly one of 'prompt' and 'messages'");
  request.prompt = prompt.value_or("");
  if (messages != nullptr) request.messages = read_messages(*messages);
  request.begin_mark = fields.boolean("add_special_tokens").value_or(true);
  request.strings = fields.boolean("return_token_strs").value_or(false);
  if (!fields.boolean("add_generation_prompt").value_or(true))
    refuse("add_generation_prompt",
           "'add_generation_prompt' must be true: others are not supported");
  fields.unsupported({"continue_final_message", "chat_template", "chat_template_kwargs", "tools"});
  fields.finish();
  return request;
}

DetokenizeRequest read_detokenize(std::string_view body) {
  const Json json = parse_body(body);
  JsonFields fields(json);
  DetokenizeRequest request;
  request.model = fields.text("model").value_or("");
  if (fields.find("tokens") == nullptr) refuse("tokens", "'tokens' is missing");
  request.tokens = read_ids(fields, "tokens");
  fields.finish();
  return request;
}

}  // namespace fovea::serve
