// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/infer/text_writer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/config/reader.h"

namespace fovea {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Where the text behind a prompt stands.
IncrementalDecoder::From from_of(const Tokenizer& tokenizer, std::span<const int32_t> prompt) {
  return has_text(tokenizer, prompt) ? IncrementalDecoder::From::middle
                                     : IncrementalDecoder::From::start;
}

}  // namespace

bool has_text(const Tokenizer& tokenizer, std::span<const int32_t> tokens) {
  return std::ranges::any_of(tokens,
                             [&](int32_t token) { return !tokenizer.piece(token).empty(); });
}

TextWriter::TextWriter(const Tokenizer& tokenizer, const GenerateOptions& options,
                       std::span<const int32_t> tokens, TextStream stream)
    : tokenizer_(tokenizer),
      max_tokens_(options.max_tokens),
      stream_(std::move(stream)),
      sampler_(options.sampling, static_cast<uint64_t>(options.seed), tokenizer.vocab_size()),
      decoder_(tokenizer, from_of(tokenizer, tokens)),
      stops_(options.stop) {
  require<InputError>(!tokens.empty(), "generate",
                      "expected a text of at least one token; got none, and this tokenizer has no "
                      "begin mark; give a prompt");
  sampler_.add_prompt(tokens);
}

void TextWriter::emit(const std::string& piece) {
  result_.text += piece;
  if (stream_ && !piece.empty()) stream_(piece);
}

std::vector<DrawnToken> draw_tokens(std::span<TextWriter* const> writers,
                                    const at::Tensor& logits) {
  std::vector<Sampler*> samplers;
  for (TextWriter* const writer : writers) samplers.push_back(&writer->sampler_);
  if (samplers.empty()) return {};
  // A padded vocabulary has logits for ids that mean nothing.
  return next_tokens(samplers, logits.narrow(1, 0, writers.front()->tokenizer_.vocab_size()));
}

void TextWriter::take(const at::Tensor& logits, std::vector<int32_t>& tokens) {
  TextWriter* const one = this;
  take(draw_tokens({&one, 1}, logits.unsqueeze(0)).front(), tokens);
}

void TextWriter::take(const DrawnToken& drawn, std::vector<int32_t>& tokens) {
  if (drawn.error) std::rethrow_exception(drawn.error);
  if (result_.tokens == 0) {
    result_.prompt_seconds = seconds_since(start_);
    start_ = std::chrono::steady_clock::now();
  }
  last_ = drawn.token;
  ++result_.tokens;
  if (!ignores_end_ && tokenizer_.ends_text(last_)) return end(FinishReason::end);
  tokens.push_back(last_);
  emit(stops_.push(decoder_.push(last_)));
  if (stopped()) end(FinishReason::stop);
}

void TextWriter::end(FinishReason reason) {
  ended_ = true;
  result_.reason = reason;
}

GenerateResult TextWriter::finish(const PathTaken& path) {
  if (!stopped()) emit(stops_.push(decoder_.finish()));
  emit(stops_.finish());
  if (result_.tokens == 0) {
    result_.prompt_seconds = max_tokens_ > 0 ? seconds_since(start_) : 0.0;
  } else {
    result_.seconds = seconds_since(start_);
  }
  result_.path = path;
  if (stopped()) {
    result_.reason = FinishReason::stop;
    result_.stop = stops_.found();
  }
  return std::move(result_);
}

int64_t checked_context(const Transformer& model, int64_t wanted) {
  require<ConfigError>(ranges::kPositionCounts.contains(wanted) && wanted != 1, "generate",
                       "'context' must be 0 (the trained length) or 2 to {}; got {}",
                       plain_number(ranges::kMostPositions), wanted);
  return wanted == 0 ? model.config().context : wanted;
}

int64_t context_limit(const Transformer& model, const ContextOptions& options) {
  const int64_t limit = checked_context(model, options.context);
  const bool counts_in_cache = model.config().attention.spec.streaming.active();
  return options.context == 0 && counts_in_cache ? static_cast<int64_t>(ranges::kMostPositions)
                                                 : limit;
}

std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, const TextRequest& request) {
  std::vector<int32_t> tokens = request.tokens;
  if (!tokens.empty()) return tokens;
  if (tokenizer.bos() >= 0) tokens.push_back(tokenizer.bos());
  tokenizer.append(request.prompt, tokens);
  return tokens;
}

int64_t needed_context(const Transformer& model, int64_t prompt, int64_t max_tokens,
                       const ContextOptions& options) {
  const int64_t limit = context_limit(model, options);
  return std::clamp<int64_t>(prompt + std::min(max_tokens, limit), std::min<int64_t>(2, limit),
                             limit);
}

int64_t needed_context(const Transformer& model, const Tokenizer& tokenizer,
                       std::string_view prompt, int64_t max_tokens, const ContextOptions& options) {
  const int64_t tokens = std::ssize(tokenizer.encode(prompt)) + (tokenizer.bos() >= 0 ? 1 : 0);
  return needed_context(model, tokens, max_tokens, options);
}

void require_tokens(int64_t tokens) {
  require<InputError>(tokens > 0, "generate",
                      "expected a text of at least one token; got none, and this tokenizer has no "
                      "begin mark; give a prompt");
}

void require_fits(const Transformer& model, int64_t tokens, int64_t context) {
  require<InputError>(tokens <= context, "generate",
                      "expected a text of at most {} tokens; got {}; shorten it, give a larger "
                      "context (the model was trained with {}), or use when_full: slide",
                      context, tokens, model.config().context);
}

at::Tensor read_chunk(const Transformer& model, std::span<const int32_t> tokens,
                      DecodeState& state) {
  const int64_t first = state.length(), count = std::min(kReadChunk, std::ssize(tokens) - first);
  const at::Tensor ids = at::empty({1, count}, at::kLong);
  std::copy_n(tokens.begin() + first, count, ids.mutable_data_ptr<int64_t>());
  return model.decode(ids.to(model.device()), state)[0];
}

std::vector<size_t> read_at_once(const Transformer& model, std::span<const int64_t> lengths) {
  constexpr int64_t kMostTokens = 8 * kReadChunk;  // with those that fill rows up
  const auto candidates = std::ranges::count_if(
      lengths, [](int64_t length) { return length > 0 && length <= kReadChunk; });
  if (model.device().is_cpu() || candidates < 2 || !model.reads_together(1, 1)) return {};
  const bool fills_up = model.reads_together(1, 2);
  for (size_t first = 0; first < lengths.size(); ++first) {
    int64_t shortest = lengths[first], longest = shortest;
    if (shortest == 0 || longest > kReadChunk) continue;
    std::vector<size_t> group{first};
    for (size_t n = first + 1; n < lengths.size(); ++n) {
      if (lengths[n] == 0) continue;
      const int64_t low = std::min(shortest, lengths[n]), high = std::max(longest, lengths[n]);
      const int64_t tokens = (std::ssize(group) + 1) * high;
      if (high > kReadChunk || tokens > kMostTokens || 4 * low < 3 * high) continue;
      if (low < high && !fills_up) continue;
      shortest = low, longest = high;
      group.push_back(n);
    }
    if (group.size() > 1) return group;
  }
  return {};
}

at::Tensor read_tokens(const Transformer& model, std::span<const int32_t> tokens,
                       DecodeState& state, const std::atomic<bool>* interrupt) {
  at::Tensor logits;
  while (state.length() < std::ssize(tokens) && !is_set(interrupt))
    logits = read_chunk(model, tokens, state);
  return state.length() < std::ssize(tokens) ? at::Tensor() : logits;
}

}  // namespace fovea
