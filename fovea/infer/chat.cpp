// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/infer/chat.h"

#include <algorithm>
#include <array>

#include "fovea/base/error.h"
#include "fovea/text/utf8.h"

namespace fovea {
namespace {

constexpr std::array<std::string_view, 4> kFormats{"auto", "template", "text", "roles"};

ChatOptions resolved(ChatOptions options, std::string_view chat_template) {
  require<ConfigError>(
      options.format != ChatFormat::chat_template || !chat_template.empty(), "chat",
      "'format' template needs a model with a chat template (tokenizer_config.json "
      "or chat_template.jinja of a folder, tokenizer.chat_template of a GGUF); this "
      "one has none: take format roles or text");
  if (options.format == ChatFormat::automatic)
    options.format = chat_template.empty() ? ChatFormat::text : ChatFormat::chat_template;
  return options;
}

/// The first special token in `text` from `begin` on; the longest of several at one place.
struct Found {
  size_t at = std::string_view::npos;
  const SpecialToken* token = nullptr;
};
Found find_special(std::string_view text, size_t begin, const std::vector<SpecialToken>& specials) {
  Found first;
  for (const SpecialToken& special : specials) {
    if (special.text.empty()) continue;
    const size_t at = text.find(special.text, begin);
    if (at > first.at || at == std::string_view::npos) continue;
    if (at < first.at || special.text.size() > first.token->text.size()) first = {at, &special};
  }
  return first;
}

/// `f(part of ordinary text)` and `f(special token)` in the order of the text.
template <class Text, class Special>
void split_at_specials(std::string_view text, const std::vector<SpecialToken>& specials,
                       const Text& ordinary, const Special& special) {
  for (size_t begin = 0;;) {
    const Found found = find_special(text, begin, specials);
    ordinary(text.substr(begin, found.token == nullptr ? text.npos : found.at - begin));
    if (found.token == nullptr) return;
    special(*found.token);
    begin = found.at + found.token->text.size();
  }
}

/// A character of Unicode's private use that no message holds.
std::string unused_character(const std::vector<ChatMessage>& messages) {
  for (int last = 0x80; last < 0xC0; ++last) {
    const std::string mark{'\xEE', '\x80', static_cast<char>(last)};  // U+E000 ...
    const auto holds = [&](const ChatMessage& m) { return m.content.find(mark) != m.content.npos; };
    if (std::ranges::none_of(messages, holds)) return mark;
  }
  fail<InputError>("chat",
                   "the conversation holds 64 characters of private use (U+E000 to U+E03F)");
}

std::string without(std::string_view text, std::string_view mark) {
  std::string out;
  for (size_t begin = 0;;) {
    const size_t at = text.find(mark, begin);
    out += text.substr(begin, at == text.npos ? at : at - begin);
    if (at == text.npos) return out;
    begin = at + mark.size();
  }
}

std::map<std::string, std::string> names_of_specials(const Tokenizer& tokenizer) {
  std::map<std::string, std::string> names;
  for (const SpecialToken& special : tokenizer.special_tokens()) {
    if (special.id == tokenizer.bos()) names["bos_token"] = special.text;
    if (special.id == tokenizer.eos()) names["eos_token"] = special.text;
    if (special.id == tokenizer.pad()) names["pad_token"] = special.text;
  }
  return names;
}

}  // namespace

std::span<const std::string_view> enum_names(ChatFormat) { return kFormats; }

void ChatOptions::describe(FieldVisitor& v) {
  v.choice({"format",
            "template: the model's own; roles: turns of user and assistant; text: go on with what "
            "you write; auto: template where the model has one, else text"},
           format);
  v.text({"system", "text before the first turn; in the format template the system's message"},
         system);
  v.text({"user", "your name in the format roles"}, user);
  v.text({"assistant", "the model's name in the format roles"}, assistant);
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view prompt) {
  std::vector<int32_t> tokens;
  split_at_specials(
      prompt, tokenizer.special_tokens(),
      [&](std::string_view text) {
        if (!text.empty()) tokenizer.append(text, tokens);
      },
      [&](const SpecialToken& special) { tokens.push_back(special.id); });
  return tokens;
}

std::vector<int32_t> encode_conversation(const Tokenizer& tokenizer, const ChatTemplate& form,
                                         std::vector<ChatMessage> messages) {
  const std::vector<SpecialToken> specials = tokenizer.special_tokens();
  // Behind the first character of each special text that somebody wrote stands a mark while the
  // template runs.
  const std::string mark = unused_character(messages);
  for (ChatMessage& message : messages) {
    std::string content;
    split_at_specials(
        message.content, specials, [&](std::string_view text) { content += text; },
        [&](const SpecialToken& special) {
          const size_t first = utf8_step(special.text).size;
          content += special.text.substr(0, first) + mark + special.text.substr(first);
        });
    message.content = std::move(content);
  }
  const std::string prompt =
      form.render(messages, {.special_tokens = names_of_specials(tokenizer)});
  std::vector<int32_t> tokens;
  split_at_specials(
      prompt, specials,
      [&](std::string_view text) {
        const std::string plain = without(text, mark);
        if (!plain.empty()) tokenizer.append(plain, tokens);
      },
      [&](const SpecialToken& special) { tokens.push_back(special.id); });
  return tokens;
}

Chat::Chat(const Transformer& model, const Tokenizer& tokenizer, const ChatOptions& options,
           const ContextOptions& context, std::string_view chat_template)
    : options_(resolved(options, chat_template)),
      tokenizer_(tokenizer),
      when_full_(context.when_full),
      session_(model, tokenizer, context) {
  if (options_.format == ChatFormat::chat_template) {
    try {
      template_.emplace(chat_template);
    } catch (const Error& error) {
      fail<UnsupportedError>("chat", "{}; take format roles or text to go without it",
                             error.what());
    }
    reset();
    return;
  }
  if (!options_.system.empty()) session_.append(options_.system);
  start_ = session_.length();
}

// The conversation as tokens. Where `slide` is wanted and too little room is left for the answer,
// the oldest turns are forgotten.
std::vector<int32_t> Chat::fitting_tokens(int64_t max_tokens) {
  const int64_t room = session_.context() - std::min(max_tokens, session_.context() / 2);
  const size_t first = !messages_.empty() && messages_[0].role == "system" ? 1 : 0;
  for (;;) {
    std::vector<int32_t> tokens = encode_conversation(tokenizer_, *template_, messages_);
    if (when_full_ == WhenFull::stop || std::ssize(tokens) <= room || messages_.size() < first + 3)
      return tokens;
    messages_.erase(messages_.begin() + static_cast<ptrdiff_t>(first),
                    messages_.begin() + static_cast<ptrdiff_t>(first) + 2);
  }
}

GenerateResult Chat::answer_template(std::string_view text, const GenerateOptions& options,
                                     const TextStream& stream, const std::atomic<bool>* interrupt) {
  const std::vector<ChatMessage> before = messages_;
  const std::vector<int32_t> tokens(session_.tokens().begin(), session_.tokens().end());
  messages_.push_back({"user", std::string(text)});
  try {
    session_.set_tokens(fitting_tokens(options.max_tokens));
    GenerateResult answer = session_.generate(options, stream, interrupt);
    messages_.push_back({"assistant", answer.text});
    return answer;
  } catch (...) {
    messages_ = before;
    session_.set_tokens(tokens);
    throw;
  }
}

GenerateResult Chat::say(std::string_view text, const GenerateOptions& options,
                         const TextStream& stream, const std::atomic<bool>* interrupt) {
  GenerateOptions how = options;
  how.check();
  if (template_) return answer_template(text, how, stream, interrupt);
  const int64_t before = session_.length();
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
  if (template_) {
    const size_t turns = messages_.size() / 2;  // the system's message is no turn
    if (turns > 0) messages_.resize(messages_.size() - 2);
    return turns > 0;
  }
  if (turns_.empty() || !session_.rewind(turns_.back())) return false;
  turns_.pop_back();
  return true;
}

void Chat::reset() {
  if (template_) {
    messages_.clear();
    if (!options_.system.empty()) messages_.push_back({"system", options_.system});
    session_.clear();
    return;
  }
  turns_.clear();
  if (session_.rewind(start_)) return;
  // The start was forgotten: what is left of it goes too.
  session_.clear();
  if (!options_.system.empty()) session_.append(options_.system);
  start_ = session_.length();
}

}  // namespace fovea
