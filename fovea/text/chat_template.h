// Chat templates: a conversation as the prompt text that a model was trained on.
//
// Models from Hugging Face carry a Jinja template, in tokenizer_config.json or in a GGUF file. A
// template is compiled once and renders as `transformers` renders it with jinja2. It is a program
// by strangers, so its steps and memory are limited, and it can read only the values given here and
// the clock. docs/chat-templates.md lists what is supported.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fovea {

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant", or what the template knows besides
  std::string content;
};

struct ChatTemplateOptions {
  bool add_generation_prompt = true;  ///< ends with the head of the answer
  /// Texts of special tokens by the names that templates use: {"bos_token", "<s>"}.
  std::map<std::string, std::string> special_tokens;
  /// More variables by name, {"enable_thinking": false}. They replace others of the same name, and
  /// none stands for `tools` and `documents` where they are not given.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  std::optional<std::tm> now;     ///< the time that strftime_now writes; absent: the local time
  int64_t max_steps = 5'000'000;  ///< see jinja/budget.h: Limits
  int64_t max_bytes = 256ll << 20;
};

/// Immutable: threads may share one.
class ChatTemplate {
 public:
  /// InputError for a malformed template, UnsupportedError for a construct that is not supported;
  /// both name the line and column. `where` is the template's name in errors.
  explicit ChatTemplate(std::string_view text, std::string where = "chat template");

  /// InputError where the template refuses the conversation (with the template's own message),
  /// fails on it, or takes more steps or bytes than it may.
  std::string render(std::span<const ChatMessage> messages,
                     const ChatTemplateOptions& options = {}) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace fovea
