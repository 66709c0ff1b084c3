// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/infer/chat.h"

#include <array>

namespace fovea {
namespace {

constexpr std::array<std::string_view, 2> kFormats{"text", "roles"};

}  // namespace

std::span<const std::string_view> enum_names(ChatFormat) { return kFormats; }

void ChatOptions::describe(FieldVisitor& v) {
  v.choice({"format", "text: go on with what you write; roles: turns of user and assistant"},
           format);
  v.text({"system", "text before the first turn"}, system);
  v.text({"user", "your name in the format roles"}, user);
  v.text({"assistant", "the model's name in the format roles"}, assistant);
}

Chat::Chat(const Transformer& model, const Tokenizer& tokenizer, const ChatOptions& options,
           const ContextOptions& context)
    : options_(options), session_(model, tokenizer, context) {
  if (!options_.system.empty()) session_.append(options_.system);
  start_ = session_.length();
}

GenerateResult Chat::say(std::string_view text, const GenerateOptions& options,
                         const TextStream& stream, const std::atomic<bool>* interrupt) {
  const int64_t before = session_.length();
  GenerateOptions how = options;
  how.check();
  if (options_.format == ChatFormat::roles) {
    // Every turn but the first begins on a line of its own, as the stop string expects it.
    const char* line = before == start_ && options_.system.empty() ? "" : "\n";
    session_.append(fmt::format("{}{}: {}\n{}:", line, options_.user, text, options_.assistant));
    how.stop.push_back(fmt::format("\n{}:", options_.user));
  } else {
    session_.append(text);
  }
  try {
    GenerateResult answer = session_.generate(how, stream, interrupt);
    turns_.push_back(before);
    return answer;
  } catch (...) {
    session_.rewind(before);
    throw;
  }
}

bool Chat::undo() {
  if (turns_.empty() || !session_.rewind(turns_.back())) return false;
  turns_.pop_back();
  return true;
}

void Chat::reset() {
  turns_.clear();
  if (session_.rewind(start_)) return;
  // The start was forgotten: what is left of it goes too.
  session_.clear();
  if (!options_.system.empty()) session_.append(options_.system);
  start_ = session_.length();
}

}  // namespace fovea
