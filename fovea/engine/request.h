// A request to the engine, and the events that answer it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/infer/generate.h"

namespace fovea {

/// A prompt that a model continues, `choices` times.
struct EngineRequest {
  /// The name of an EngineModel; "" = the first one.
  std::string model = {};
  /// Continued behind the begin mark, where the tokenizer has one. Texts of special tokens in it
  /// stay text.
  std::string text = {};
  /// The prompt's tokens as they are, begin mark included; they stand for `text` unless there are
  /// none.
  std::vector<int32_t> tokens = {};
  /// Sampling, stop strings, `seed` and `max_tokens`, which may be 0: the prompt is read alone.
  GenerateOptions generate = {};
  /// Texts that are drawn of the prompt, which is read once. The first has the seed itself, the
  /// others seeds made of it.
  int64_t choices = 1;
  /// Log-probabilities of the new tokens, and of so many likeliest alternatives each.
  std::optional<int64_t> top_logprobs = {};
  /// The same for the tokens of the prompt (PromptRead::logprobs). The prompt is read whole then:
  /// the prefix cache has no logits.
  std::optional<int64_t> prompt_logprobs = {};
  /// The model's end mark does not end the text; it counts as a token without text.
  bool ignore_end = false;
  /// From submit() on; the request ends with `deadline`, wherever it is. 0 = none.
  std::chrono::milliseconds deadline{0};

  static constexpr int64_t kMostLogprobs = 1024;
};

/// ln p of a token under the model's own distribution: before penalties, temperature and top-k.
struct TokenLogprob {
  int32_t token = 0;
  double logprob = 0;
};

/// One place in a text: the token that stands there, and the likeliest ones, likeliest first
/// (ties by id).
struct PlaceLogprobs {
  TokenLogprob token;
  std::vector<TokenLogprob> top = {};
};

/// The first event of a request: its prompt is read.
struct PromptRead {
  int64_t tokens = 0;  ///< of the prompt
  int64_t cached = 0;  ///< of these, taken from the prefix cache
  /// One a prompt token where the request wants them; nothing for the first, which follows nothing.
  std::vector<std::optional<PlaceLogprobs>> logprobs = {};
};

/// A new token of one choice.
struct TokenWritten {
  int64_t choice = 0;
  int32_t token = 0;
  /// The text that is certain now, valid UTF-8. Often "": inside a character of several bytes, and
  /// while a stop string may have begun.
  std::string text = {};
  std::optional<PlaceLogprobs> logprobs = {};
};

/// The end of one choice, behind its last token.
struct ChoiceEnded {
  int64_t choice = 0;
  std::string text = {};  ///< what was held back: it belongs to the choice's text
  FinishReason reason = FinishReason::length;
  std::string stop = {};  ///< the stop string that was met
  int64_t tokens = 0;     ///< new ones, the end mark included
};

/// Why a request ended. `stopped`: by Engine::stop(). `failed`: RequestEnded::error tells.
enum class RequestOutcome { done, cancelled, deadline, stopped, failed };
std::span<const std::string_view> enum_names(RequestOutcome);

/// Comes once for each accepted request and last, whatever happened.
struct RequestEnded {
  RequestOutcome outcome = RequestOutcome::done;
  std::string error = {};  ///< of `failed`: "[where] ..."
  bool no_memory = false;  ///< of `failed`: memory was short; later there may be enough
  int64_t prompt_tokens = 0, cached_tokens = 0, tokens = 0;
};

/// In this order: PromptRead; TokenWritten of all choices; ChoiceEnded of each; RequestEnded. A
/// request that does not end as `done` may miss any of the first three.
using EngineEvent = std::variant<PromptRead, TokenWritten, ChoiceEnded, RequestEnded>;

/// Receives the events of one request, on the engine's thread: all other requests wait while it
/// runs. It may cancel requests. It must not wait for the engine, and must not throw: a request
/// whose events throw is cancelled.
using EngineEvents = std::function<void(const EngineEvent&)>;

/// An accepted request. Copies mean the same request.
class RequestHandle {
 public:
  RequestHandle() = default;

  uint64_t id() const { return state_ ? state_->id : 0; }
  /// Ends the request within one step, with `cancelled`; others do not notice. From any thread, at
  /// any time, any number of times.
  void cancel() const {
    if (state_) state_->cancelled.store(true, std::memory_order_relaxed);
  }

 private:
  friend class Engine;
  struct State {
    uint64_t id = 0;
    std::atomic<bool> cancelled = false;
  };
  std::shared_ptr<State> state_;
};

/// Refusals of submit(), beside ConfigError (an impossible setting), InputError (a prompt without
/// tokens, ids that do not exist) and MemoryError (a request that needs more than all caches).

/// No such model; the message names those there are.
class UnknownModel : public InputError {
 public:
  using InputError::InputError;
  std::string_view kind() const override { return "UnknownModel"; }
};

/// The prompt has more tokens than the context has positions.
class PromptTooLong : public InputError {
 public:
  PromptTooLong(const std::string& message, int64_t tokens, int64_t context)
      : InputError(message), tokens_(tokens), context_(context) {}
  std::string_view kind() const override { return "PromptTooLong"; }
  int64_t tokens() const { return tokens_; }
  int64_t context() const { return context_; }

 private:
  int64_t tokens_, context_;
};

/// The queue is full: the same request may be accepted later.
class EngineBusy : public Error {
 public:
  using Error::Error;
  std::string_view kind() const override { return "EngineBusy"; }
};

/// The time of a request for attention is over.
class DeadlinePassed : public Error {
 public:
  using Error::Error;
  std::string_view kind() const override { return "DeadlinePassed"; }
};

/// The engine accepts no more requests (drain(), stop()).
class EngineClosed : public Error {
 public:
  using Error::Error;
  std::string_view kind() const override { return "EngineClosed"; }
};

}  // namespace fovea
