// A conversation over one cache: turns, taking back, starting again.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fovea/infer/generate.h"

namespace fovea {

/// `text`: what you write is continued as it stands, which is all that a model without instruction
/// training can do. `roles`: turns are "User: ...\nAssistant:", and the answer ends where the next
/// turn would begin.
enum class ChatFormat { text, roles };
std::span<const std::string_view> enum_names(ChatFormat);

struct ChatOptions {
  ChatFormat format = ChatFormat::text;
  std::string system;         ///< stands before everything, also after reset()
  std::string user = "User";  ///< names of `roles`
  std::string assistant = "Assistant";

  void describe(FieldVisitor& v);
};

class Chat {
 public:
  /// Model and tokenizer must outlive this. The cache is made once.
  Chat(const Transformer& model, const Tokenizer& tokenizer, const ChatOptions& options = {},
       const ContextOptions& context = {});

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

 private:
  ChatOptions options_;
  TextSession session_;
  int64_t start_ = 0;           // length before the first turn
  std::vector<int64_t> turns_;  // length before each turn
};

}  // namespace fovea
