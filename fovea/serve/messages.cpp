// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/messages.h"

#include "fovea/serve/completion_request.h"
#include "fovea/serve/json_fields.h"

namespace fovea::serve {
namespace {

std::string read_part(const Json& part, const std::string& name) {
  JsonFields fields(part, name);
  const std::optional<std::string> type = fields.text("type");
  if (type != "text")
    refuse(name, "'{}.type' must be 'text': this model reads text alone; got {}", name,
           type ? "'" + *type + "'" : "none");
  const std::optional<std::string> text = fields.text("text");
  if (!text) refuse(name, "'{}.text' is missing", name);
  fields.finish();
  return *text;
}

std::string read_content(const Json& content, const std::string& name) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    refuse(name, "'{}' must be a text, or a list of {{\"type\": \"text\", \"text\": ...}}", name);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i)
    text += read_part(content[i], fmt::format("{}[{}]", name, i));
  return text;
}

ChatMessage read_message(const Json& message, const std::string& name) {
  JsonFields fields(message, name);
  const std::optional<std::string> role = fields.text("role");
  if (!role || role->empty())
    refuse(name, "'{}.role' must be a text such as \"user\"; it is missing", name);
  if (*role == "tool" || *role == "function")
    refuse(name, "'{}.role' {} is not supported: tools are not", name, *role);
  fields.unsupported({"tool_calls", "function_call", "tool_call_id", "audio"});
  fields.ignore({"name", "refusal", "annotations", "reasoning_content"});
  const Json* content = fields.find("content");
  fields.finish();
  if (content == nullptr) {
    if (*role == "assistant") return {.role = *role, .content = ""};
    refuse(name, "'{}.content' is missing", name);
  }
  // OpenAI's newer word for the system's message, which templates do not know.
  const bool developer = *role == "developer";
  return {.role = developer ? "system" : *role,
          .content = read_content(*content, name + ".content")};
}

}  // namespace

std::vector<ChatMessage> read_messages(const Json& list) {
  if (!list.is_array() || list.empty() || list.size() > RequestLimits::kMostMessages)
    refuse("messages", "'messages' must be a list of 1 to {} objects with 'role' and 'content'",
           RequestLimits::kMostMessages);
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < list.size(); ++i)
    messages.push_back(read_message(list[i], fmt::format("messages[{}]", i)));
  return messages;
}

}  // namespace fovea::serve
