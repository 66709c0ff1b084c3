// A conversation over one cache: turns, taking back, starting again.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/infer/generate.h"
#include "fovea/text/chat_template.h"

namespace fovea {

/// The form in which a turn reaches the model.
/// - `automatic`: `chat_template` where the model has one, else `text`
/// - `chat_template`: the model's own template renders the conversation
/// - `text`: your text is continued as it stands; a model without instruction training can do no
///   more
/// - `roles`: turns are "User: ...\nAssistant:", and the answer ends where the next turn would
///   begin
enum class ChatFormat { automatic, chat_template, text, roles };
std::span<const std::string_view> enum_names(ChatFormat);  // auto, template, text, roles

struct ChatOptions {
  ChatFormat format = ChatFormat::automatic;
  std::string system;         ///< stands before everything, also after reset()
  std::string user = "User";  ///< names of `roles`
  std::string assistant = "Assistant";

  void describe(FieldVisitor& v);
};

/// The tokens of a rendered prompt: texts of special tokens in it are those tokens.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view prompt);

/// The prompt of a conversation as tokens. Texts of special tokens inside messages stay text, so
/// nobody forges the end of a turn. InputError where the template refuses it.
std::vector<int32_t> encode_conversation(const Tokenizer& tokenizer, const ChatTemplate& form,
                                         std::vector<ChatMessage> messages);

class Chat {
 public:
  /// Model and tokenizer must outlive this. The cache is made once. `chat_template` is Jinja text,
  /// "" where the model has none. ConfigError for the format `template` without one;
  /// UnsupportedError for one that cannot be read (other formats go without it).
  Chat(const Transformer& model, const Tokenizer& tokenizer, const ChatOptions& options = {},
       const ContextOptions& context = {}, std::string_view chat_template = {});

  /// One turn. An interrupted answer stays as far as it came. InputError where the turn does not
  /// fit. After an exception the conversation is as before the turn.
  GenerateResult say(std::string_view text, const GenerateOptions& options,
                     const TextStream& stream = {}, const std::atomic<bool>* interrupt = nullptr);
  /// Takes the last turn and its answer back; false where there is none, or it was forgotten
  /// (`slide`).
  bool undo();
  /// Forgets all turns.
  void reset();
  const TextSession& session() const { return session_; }
  /// In force: not `automatic`.
  ChatFormat format() const { return options_.format; }

 private:
  GenerateResult answer_template(std::string_view text, const GenerateOptions& options,
                                 const TextStream& stream, const std::atomic<bool>* interrupt);
  std::vector<int32_t> fitting_tokens(int64_t max_tokens);

  ChatOptions options_;
  const Tokenizer& tokenizer_;
  WhenFull when_full_;
  TextSession session_;
  int64_t start_ = 0;           // length before the first turn
  std::vector<int64_t> turns_;  // length before each turn
  std::optional<ChatTemplate> template_;
  std::vector<ChatMessage> messages_;  // of the format template, the system's first
};

}  // namespace fovea
