// One text while it is written: draws tokens, decodes them to UTF-8, finds its end. Private to
// fovea/infer and fovea/engine.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <span>
#include <vector>

#include "fovea/infer/generate.h"
#include "fovea/infer/stop_strings.h"

namespace fovea {

class TextWriter {
 public:
  /// `tokens`: of the prompt. The tokenizer must outlive this.
  TextWriter(const Tokenizer& tokenizer, const GenerateOptions& options,
             std::span<const int32_t> tokens, TextStream stream = {});

  /// Whether another token may be drawn.
  bool wants_more() const { return !ended_ && result_.tokens < max_tokens_; }
  bool ended() const { return ended_; }
  /// Draws the next token from logits [v] and takes it.
  void take(const at::Tensor& logits_v, std::vector<int32_t>& tokens);
  /// Appends the next token to `tokens` unless it is the end mark; rethrows its error.
  void take(const DrawnToken& drawn, std::vector<int32_t>& tokens);
  /// The token that take() drew last, the end mark included.
  int32_t last() const { return last_; }
  /// End marks do not end the text from now on; they are tokens without text.
  void ignore_end() { ignores_end_ = true; }
  /// Ends the text from outside.
  void end(FinishReason reason);
  /// Once, behind the last token.
  GenerateResult finish(const PathTaken& path);

  GenerateResult& result() { return result_; }
  bool stopped() const { return !stops_.found().empty(); }

 private:
  friend std::vector<DrawnToken> draw_tokens(std::span<TextWriter* const> writers,
                                             const at::Tensor& logits_nv);
  void emit(const std::string& piece);

  const Tokenizer& tokenizer_;
  int64_t max_tokens_;
  TextStream stream_;
  Sampler sampler_;
  IncrementalDecoder decoder_;
  StopStrings stops_;
  GenerateResult result_;
  bool ended_ = false, ignores_end_ = false;
  int32_t last_ = -1;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The next token of texts with one tokenizer from logits [texts, v], for take().
std::vector<DrawnToken> draw_tokens(std::span<TextWriter* const> writers,
                                    const at::Tensor& logits_nv);

/// Positions of a text: the model's trained length, or what is wanted. ConfigError.
int64_t checked_context(const Transformer& model, int64_t wanted);

/// The same, or no limit where nothing is wanted and every layer streams: such a model counts
/// positions inside its caches.
int64_t context_limit(const Transformer& model, const ContextOptions& options);

/// The tokens of a request's prompt, begin mark included.
std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, const TextRequest& request);

/// Positions that the tokens of a prompt and new ones need, within the context.
int64_t needed_context(const Transformer& model, int64_t prompt, int64_t max_tokens,
                       const ContextOptions& options);
int64_t needed_context(const Transformer& model, const Tokenizer& tokenizer,
                       std::string_view prompt, int64_t max_tokens, const ContextOptions& options);

/// Whether somebody asked to stop; `flag` may be null.
inline bool is_set(const std::atomic<bool>* flag) {
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

/// Whether some token stands for text: a prompt of marks alone has none.
bool has_text(const Tokenizer& tokenizer, std::span<const int32_t> tokens);

/// InputError for a text of no token.
void require_tokens(int64_t tokens);

/// InputError where the text does not fit.
void require_fits(const Transformer& model, int64_t tokens, int64_t context);

/// Tokens that are read at a time: bounds the activations of a long prompt, and how long other
/// texts wait for it. The same for every text, because logits depend on it in their last bits.
constexpr int64_t kReadChunk = 1024;

/// Reads the next kReadChunk of `tokens` into the cache of one text, or what is left of them; the
/// logits [v] after the last one read.
at::Tensor read_chunk(const Transformer& model, std::span<const int32_t> tokens,
                      DecodeState& state);

/// Which of some texts one pass should read (Transformer::read_together()), in their order; none
/// where a text alone is as fast. `lengths`: of their prompts, 0 for those that are not wanted.
///
/// On a GPU a pass over a short prompt costs launches, not arithmetic. The prompts are of like
/// length, since rows are filled up to the longest, and are read whole.
std::vector<size_t> read_at_once(const Transformer& model, std::span<const int64_t> lengths);

/// Brings the cache of one text to all `tokens`; the logits [v] after the last of them, undefined
/// where `interrupt` came first.
at::Tensor read_tokens(const Transformer& model, std::span<const int32_t> tokens,
                       DecodeState& state, const std::atomic<bool>* interrupt);

}  // namespace fovea
