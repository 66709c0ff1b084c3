// Text from a model: a text that grows token by token over one preallocated cache.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/infer/sampling.h"
#include "fovea/nn/transformer.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

/// Action when a text reaches the last position of its context. `stop`: the text ends with a
/// reason. `slide`: the older half is forgotten and the rest is read again from position 0.
enum class WhenFull { stop, slide };
std::span<const std::string_view> enum_names(WhenFull);

/// The space of a text; fixed for its life.
struct ContextOptions {
  /// Positions; 0 = the model's trained length. More is allowed: the positions beyond follow the
  /// model's RoPE, which has not seen them in training.
  int64_t context = 0;
  WhenFull when_full = WhenFull::stop;

  void describe(FieldVisitor& v);
  bool operator==(const ContextOptions&) const = default;
};

/// How an answer is made.
struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 200;
  int64_t seed = 0;
  std::vector<std::string> stop;  ///< the text ends before the first of them

  void describe(FieldVisitor& v);
  /// ConfigError with the key of the first impossible value.
  void check() const;
  bool operator==(const GenerateOptions&) const = default;
};

/// Why the text ended: the model's end mark, a stop string, `max_tokens`, the last position of the
/// context, or the caller.
enum class FinishReason { end, stop, length, context, interrupted };
std::span<const std::string_view> enum_names(FinishReason);

struct GenerateResult {
  std::string text;  ///< new text, valid UTF-8
  FinishReason reason = FinishReason::length;
  std::string stop;  ///< the stop string that was met
  /// Read before the first new one (those already in the cache do not count).
  int64_t prompt_tokens = 0;
  int64_t tokens = 0;         ///< new, the end mark included
  double prompt_seconds = 0;  ///< until the first logits
  double seconds = 0;         ///< after that
  PathTaken path;             ///< of the last token: DecodeState::path

  /// New tokens after the first, over `seconds`; 0 where there is no second token.
  double tokens_per_second() const;
  /// {"text", "finish_reason", ...}
  nlohmann::ordered_json to_json() const;
};

using TextStream = std::function<void(std::string_view)>;

/// A text that a model continues. Everything read or written stays in the cache, so that the next
/// call reads only what is new (chat). Holds references to model and tokenizer; not thread-safe.
class TextSession {
 public:
  /// An empty text: the begin mark, where the tokenizer has one. The cache is made once, for all
  /// positions of the context. ConfigError.
  TextSession(const Transformer& model, const Tokenizer& tokenizer,
              const ContextOptions& options = {});

  /// Adds text; it is read at the next generate(). InputError where it does not fit and `when_full`
  /// is `stop`; the session is as before then.
  void append(std::string_view text);
  /// Sets the text to these tokens, the begin mark among them where there is one. Cached tokens of
  /// the common start are not read again. InputError as append(); tokens that `slide` forgot are no
  /// part of the text any more.
  void set_tokens(std::vector<int32_t> tokens);
  /// Continues the text. `stream` receives the new text piece by piece, each valid UTF-8;
  /// `interrupt` ends it between two tokens. InputError for an empty text. The same seed gives the
  /// same text.
  GenerateResult generate(const GenerateOptions& options, const TextStream& stream = {},
                          const std::atomic<bool>* interrupt = nullptr);

  /// Tokens of the text, those forgotten by `slide` included: a mark for rewind().
  int64_t length() const { return forgotten_ + static_cast<int64_t>(tokens_.size()); }
  /// Goes back to an earlier length. False where that part was forgotten; nothing changes then.
  bool rewind(int64_t length);
  /// Forgets everything but the begin mark.
  void clear();
  /// The tokens that the model sees, begin mark included.
  std::span<const int32_t> tokens() const { return tokens_; }
  int64_t context() const { return context_; }
  /// Bytes of the cache.
  int64_t cache_bytes() const { return state_.bytes(); }

 private:
  at::Tensor read_pending(const std::atomic<bool>* interrupt);
  bool make_room();
  void forget_text_after(size_t first_token, const std::string& stop);
  void shorten_cache(int64_t length);

  const Transformer& model_;
  const Tokenizer& tokenizer_;
  int64_t context_;
  WhenFull when_full_;
  DecodeState state_;            // holds a prefix of tokens_
  std::vector<int32_t> tokens_;  // begin mark and text
  int64_t forgotten_ = 0;
};

/// InputError where generate_text() would refuse `prompt`: it has no token, or, where `when_full`
/// is `stop`, more than the context.
void check_prompt(const Transformer& model, const Tokenizer& tokenizer, std::string_view prompt,
                  const ContextOptions& context = {});

/// Continues one prompt; the cache has just the positions that prompt and `max_tokens` need.
GenerateResult generate_text(const Transformer& model, const Tokenizer& tokenizer,
                             std::string_view prompt, const GenerateOptions& options = {},
                             const TextStream& stream = {}, ContextOptions context = {},
                             const std::atomic<bool>* interrupt = nullptr);

/// One prompt of many.
struct TextRequest {
  std::string prompt;
  GenerateOptions options;
  /// The prompt's tokens, begin mark included; they stand for `prompt` unless there are none.
  std::vector<int32_t> tokens = {};
};

/// Receives the result of request n.
using TextDone = std::function<void(size_t n, const GenerateResult& result)>;

/// Progress of a batch, told after every step.
struct BatchProgress {
  int64_t finished = 0, writing = 0, reading = 0;  ///< requests; reading: of their prompts
  int64_t tokens = 0;                              ///< new ones of all texts so far
  int64_t cache_bytes = 0;                         ///< of the texts at work
  int64_t most_cache_bytes = 0;                    ///< since the start
};

/// How many requests are answered at once.
struct BatchOptions {
  enum class Order { requests, finished };

  static constexpr int64_t kMost = 1024;
  int64_t batch = 8;  ///< texts at once, from 1 to kMost
  Order order = Order::requests;
  /// Bytes that the caches of texts at once may take together; 0 = half of the machine's memory. A
  /// text that needs more is answered alone.
  int64_t cache_bytes = 0;
  std::function<void(const BatchProgress&)> progress;
};

/// Bytes of caches that a batch may reach: those of the requests that need most, within the bound.
/// InputError as generate_texts().
int64_t batch_cache_bytes(const Transformer& model, const Tokenizer& tokenizer,
                          std::span<const TextRequest> requests, const ContextOptions& context,
                          const BatchOptions& batch);

/// Continues many prompts; each gets the text that generate_text() gives it, on the CPU bit for
/// bit. Where the fused decoder takes the model, `batch` texts share each step; a finished one
/// makes room for the next, and prompts are read in parts between the steps. `done` comes in the
/// order of the requests or as they finish. After `interrupt` the results that remain say
/// `interrupted`. ConfigError for an impossible batch.
void generate_texts(const Transformer& model, const Tokenizer& tokenizer,
                    std::span<const TextRequest> requests, const ContextOptions& context,
                    const TextDone& done, const std::atomic<bool>* interrupt = nullptr,
                    const BatchOptions& batch = {});

}  // namespace fovea
