// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/infer/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/infer/stop_strings.h"

namespace fovea {
namespace {

constexpr std::array<std::string_view, 2> kWhenFull{"stop", "slide"};
constexpr std::array<std::string_view, 5> kReasons{"end", "stop", "length", "context",
                                                   "interrupted"};
// Tokens read at a time: bounds the activations of a long prompt, and is where Ctrl-C acts. Long
// enough that plans and packed keys of grouped attention are made rarely (docs/kernels/grouped.md).
constexpr int64_t kReadChunk = 2048;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool is_set(const std::atomic<bool>* flag) {
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

void require_fit(int64_t tokens, int64_t context, const Transformer& model) {
  require<InputError>(tokens <= context, "generate",
                      "expected a text of at most {} tokens; got {}; shorten it, give a larger "
                      "context (the model was trained with {}), or use when_full: slide",
                      context, tokens, model.config().context);
}

void require_tokens(int64_t tokens) {
  require<InputError>(tokens > 0, "generate",
                      "expected a text of at least one token; got none, and this tokenizer has no "
                      "begin mark; give a prompt");
}

int64_t checked_context(const Transformer& model, int64_t wanted) {
  require<ConfigError>(ranges::kPositionCounts.contains(wanted) && wanted != 1, "generate",
                       "'context' must be 0 (the trained length) or 2 to {}; got {}",
                       plain_number(ranges::kMostPositions), wanted);
  return wanted == 0 ? model.config().context : wanted;
}

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
  tokenizer_.append(text, tokens_);
  const auto now = static_cast<int64_t>(tokens_.size());
  if (now <= context_ || when_full_ == WhenFull::slide) return;
  tokens_.resize(before);
  require_fit(now, context_, model_);
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

// The logits [v] after the last token; undefined where `interrupt` came first.
at::Tensor TextSession::read_pending(const std::atomic<bool>* interrupt) {
  const auto size = static_cast<int64_t>(tokens_.size());
  shorten_cache(size - 1);
  at::Tensor logits;
  while (state_.length() < size && !is_set(interrupt)) {
    const int64_t first = state_.length(), count = std::min(kReadChunk, size - first);
    const at::Tensor ids = at::empty({1, count}, at::kLong);
    std::copy_n(tokens_.begin() + first, count, ids.mutable_data_ptr<int64_t>());
    logits = model_.decode(ids.to(model_.device()), state_);
  }
  // A padded vocabulary has logits for ids that mean nothing.
  return state_.length() < size ? at::Tensor() : logits[0].narrow(0, 0, tokenizer_.vocab_size());
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
  tokenizer_.append(std::string_view(kept).substr(kept.size() - rest), tokens_);
  shorten_cache(static_cast<int64_t>(count));
}

GenerateResult TextSession::generate(const GenerateOptions& options, const TextStream& stream,
                                     const std::atomic<bool>* interrupt) {
  options.check();
  require_tokens(std::ssize(tokens_));
  GenerateResult result;
  Sampler sampler(options.sampling, static_cast<uint64_t>(options.seed), tokenizer_.vocab_size());
  sampler.add_prompt(tokens_);
  IncrementalDecoder decoder(tokenizer_);
  StopStrings stops(options.stop);
  const auto emit = [&](const std::string& piece) {
    result.text += piece;
    if (stream && !piece.empty()) stream(piece);
  };
  make_room();
  result.prompt_tokens =
      static_cast<int64_t>(tokens_.size()) -
      std::min<int64_t>(state_.length(), static_cast<int64_t>(tokens_.size()) - 1);
  const int64_t text_begin = length();
  auto start = std::chrono::steady_clock::now();
  while (result.tokens < options.max_tokens) {
    const at::Tensor logits = read_pending(interrupt);
    if (result.tokens == 0) {
      result.prompt_seconds = seconds_since(start);
      start = std::chrono::steady_clock::now();
    }
    if (!logits.defined()) {
      result.reason = FinishReason::interrupted;
      break;
    }
    const int32_t token = sampler.next(logits);
    ++result.tokens;
    if (token == tokenizer_.eos()) {
      result.reason = FinishReason::end;
      break;
    }
    tokens_.push_back(token);
    emit(stops.push(decoder.push(token)));
    if (!stops.found().empty()) break;
    if (!make_room()) {
      result.reason = FinishReason::context;
      break;
    }
  }
  if (stops.found().empty()) emit(stops.push(decoder.finish()));
  emit(stops.finish());
  result.seconds = seconds_since(start);
  result.path = state_.path;
  if (!stops.found().empty()) {
    result.reason = FinishReason::stop;
    result.stop = stops.found();
    forget_text_after(static_cast<size_t>(std::max<int64_t>(text_begin - forgotten_, 0)),
                      result.stop);
  }
  return result;
}

void check_prompt(const Transformer& model, const Tokenizer& tokenizer, std::string_view prompt,
                  const ContextOptions& context) {
  const int64_t limit = checked_context(model, context.context);
  const int64_t tokens = std::ssize(tokenizer.encode(prompt)) + (tokenizer.bos() >= 0 ? 1 : 0);
  require_tokens(tokens);
  if (context.when_full == WhenFull::stop) require_fit(tokens, limit, model);
}

GenerateResult generate_text(const Transformer& model, const Tokenizer& tokenizer,
                             std::string_view prompt, const GenerateOptions& options,
                             const TextStream& stream, ContextOptions context,
                             const std::atomic<bool>* interrupt) {
  options.check();
  if (context.when_full == WhenFull::stop) {
    const int64_t limit = checked_context(model, context.context);
    const auto prompt_tokens = static_cast<int64_t>(tokenizer.encode(prompt).size()) + 1;
    context.context = std::clamp<int64_t>(prompt_tokens + std::min(options.max_tokens, limit),
                                          std::min<int64_t>(2, limit), limit);
  }
  TextSession session(model, tokenizer, context);
  session.append(prompt);
  return session.generate(options, stream, interrupt);
}

}  // namespace fovea
