// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/infer/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/infer/stop_strings.h"
#include "fovea/infer/text_writer.h"

namespace fovea {
namespace {

constexpr std::array<std::string_view, 2> kWhenFull{"stop", "slide"};
constexpr std::array<std::string_view, 5> kReasons{"end", "stop", "length", "context",
                                                   "interrupted"};
}  // namespace

std::span<const std::string_view> enum_names(WhenFull) { return kWhenFull; }
std::span<const std::string_view> enum_names(FinishReason) { return kReasons; }

void ContextOptions::describe(FieldVisitor& v) {
  v.integer(
      {"context", "positions of the text; 0 = the model's trained length", ranges::kPositionCounts},
      context);
  v.choice({"when_full", "at the last position: stop, or slide (forget the older half)"},
           when_full);
}

void GenerateOptions::describe(FieldVisitor& v) {
  sampling.describe(v);
  v.integer({"max_tokens", "new tokens at most", ranges::kPositionCounts}, max_tokens);
  v.integer({"seed", "of the draws; the same seed gives the same text", ranges::kSeeds}, seed);
  v.texts({"stop", "the text ends before the first of these strings"}, stop);
}

void GenerateOptions::check() const {
  check_fields("generate", *this);
  StopStrings{stop};
}

double GenerateResult::tokens_per_second() const {
  return tokens > 1 && seconds > 0 ? static_cast<double>(tokens - 1) / seconds : 0.0;
}

nlohmann::ordered_json GenerateResult::to_json() const {
  nlohmann::ordered_json json{{"text", text}, {"finish_reason", enum_name(reason)}};
  if (!stop.empty()) json["stop"] = stop;
  json["prompt_tokens"] = prompt_tokens;
  json["tokens"] = tokens;
  json["prompt_seconds"] = prompt_seconds;
  json["seconds"] = seconds;
  json["tokens_per_second"] = tokens_per_second();
  json["decode"] = enum_name(path.name);
  if (!path.plan.empty()) json["decode_plan"] = path.plan_text();
  if (const std::string why = path.reason.text(); !why.empty()) json["decode_reason"] = why;
  return json;
}

TextSession::TextSession(const Transformer& model, const Tokenizer& tokenizer,
                         const ContextOptions& options)
    : model_(model),
      tokenizer_(tokenizer),
      context_(checked_context(model, options.context)),
      when_full_(options.when_full),
      state_(model.make_decode_state(1, context_)) {
  if (tokenizer.bos() >= 0) tokens_.push_back(tokenizer.bos());
}

void TextSession::append(std::string_view text) {
  const size_t before = tokens_.size();
  if (has_text(tokenizer_, tokens_)) {
    tokenizer_.append_more(text, tokens_);
  } else {
    tokenizer_.append(text, tokens_);
  }
  try {
    if (when_full_ == WhenFull::stop) require_fits(model_, std::ssize(tokens_), context_);
  } catch (const InputError&) {
    tokens_.resize(before);
    throw;
  }
}

void TextSession::set_tokens(std::vector<int32_t> tokens) {
  if (when_full_ == WhenFull::stop) require_fits(model_, std::ssize(tokens), context_);
  const auto [end, ignored] = std::ranges::mismatch(tokens_, tokens);
  const int64_t common = end - tokens_.begin();
  tokens_ = std::move(tokens);
  forgotten_ = 0;
  shorten_cache(common);
}

// Brings the cache to `length` tokens. Where it has evicted what that needs it starts anew, and the
// tokens are read again.
void TextSession::shorten_cache(int64_t length) {
  if (state_.length() <= length) return;
  try {
    state_.truncate(length);
  } catch (const UnsupportedError&) {
    state_ = model_.make_decode_state(1, context_);
  }
}

bool TextSession::rewind(int64_t length) {
  const int64_t kept = length - forgotten_;
  if (kept < (forgotten_ > 0 ? 1 : 0) || kept > static_cast<int64_t>(tokens_.size())) return false;
  tokens_.resize(static_cast<size_t>(kept));
  shorten_cache(kept);
  return true;
}

void TextSession::clear() {
  tokens_.clear();
  if (tokenizer_.bos() >= 0) tokens_.push_back(tokenizer_.bos());
  forgotten_ = 0;
  shorten_cache(0);
}

// Makes the text fit into the context; false where it does not and nothing may be forgotten.
bool TextSession::make_room() {
  const auto size = static_cast<int64_t>(tokens_.size());
  if (size <= context_) return true;
  if (when_full_ == WhenFull::stop) return false;
  const int64_t marks = tokenizer_.bos() >= 0 ? 1 : 0;
  const int64_t dropped = size - std::max<int64_t>(context_ / 2, 1 + marks);
  tokens_.erase(tokens_.begin() + marks, tokens_.begin() + marks + dropped);
  forgotten_ += dropped;
  state_ = model_.make_decode_state(1, context_);
  return true;
}

at::Tensor TextSession::read_pending(const std::atomic<bool>* interrupt) {
  shorten_cache(static_cast<int64_t>(tokens_.size()) - 1);
  return read_tokens(model_, tokens_, state_, interrupt);
}

// Leaves the generated text up to the stop string in the session: whole tokens where the border
// allows it, the rest encoded anew.
void TextSession::forget_text_after(size_t first_token, const std::string& stop) {
  std::string bytes;
  for (size_t i = first_token; i < tokens_.size(); ++i) bytes += tokenizer_.piece(tokens_[i]);
  size_t rest = bytes.find(stop);
  if (rest == std::string::npos) return;
  const std::string kept = bytes.substr(0, rest);
  size_t count = first_token;
  for (; count < tokens_.size(); ++count) {
    const size_t size = tokenizer_.piece(tokens_[count]).size();
    if (size > rest) break;
    rest -= size;
  }
  tokens_.resize(count);
  tokenizer_.append_more(std::string_view(kept).substr(kept.size() - rest), tokens_);
  shorten_cache(static_cast<int64_t>(count));
}

GenerateResult TextSession::generate(const GenerateOptions& options, const TextStream& stream,
                                     const std::atomic<bool>* interrupt) {
  options.check();
  require_tokens(std::ssize(tokens_));
  TextWriter writer(tokenizer_, options, tokens_, stream);
  make_room();
  writer.result().prompt_tokens =
      static_cast<int64_t>(tokens_.size()) -
      std::min<int64_t>(state_.length(), static_cast<int64_t>(tokens_.size()) - 1);
  const int64_t text_begin = length();
  while (writer.wants_more()) {
    const at::Tensor logits = read_pending(interrupt);
    if (!logits.defined()) {
      writer.end(FinishReason::interrupted);
      break;
    }
    const size_t before = tokens_.size();
    writer.take(logits, tokens_);
    if (!writer.stopped() && tokens_.size() > before && !make_room())
      writer.end(FinishReason::context);
  }
  GenerateResult result = writer.finish(state_.path);
  if (result.reason == FinishReason::stop) {
    forget_text_after(static_cast<size_t>(std::max<int64_t>(text_begin - forgotten_, 0)),
                      result.stop);
  }
  return result;
}

void check_prompt(const Transformer& model, const Tokenizer& tokenizer, std::string_view prompt,
                  const ContextOptions& context) {
  const int64_t limit = context_limit(model, context);
  const int64_t tokens = std::ssize(tokenizer.encode(prompt)) + (tokenizer.bos() >= 0 ? 1 : 0);
  require_tokens(tokens);
  if (context.when_full == WhenFull::stop) require_fits(model, tokens, limit);
}

GenerateResult generate_text(const Transformer& model, const Tokenizer& tokenizer,
                             std::string_view prompt, const GenerateOptions& options,
                             const TextStream& stream, ContextOptions context,
                             const std::atomic<bool>* interrupt) {
  options.check();
  if (context.when_full == WhenFull::stop)
    context.context = needed_context(model, tokenizer, prompt, options.max_tokens, context);
  TextSession session(model, tokenizer, context);
  session.append(prompt);
  return session.generate(options, stream, interrupt);
}

}  // namespace fovea
