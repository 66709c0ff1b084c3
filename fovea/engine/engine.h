// The engine: requests share the steps of one or more models; they join and leave between steps.
//
// One thread of its own reads prompts in chunks, writes one token of every text at a time, and
// delivers the events. A request's text is the same alone and among others, on the CPU to the bit.
// Chunks begin at multiples of `chunk`, and every text has a cache of its own, which shares whole
// chunks with others.
//
//   Engine engine({{.name = "base", .model = open_model(...)}});
//   engine.submit({.text = "Once", .generate = {.max_tokens = 9}}, [](const EngineEvent& e) {...});
//   engine.wait();
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fovea/checkpoint/model_folder.h"
#include "fovea/engine/attention_rows.h"
#include "fovea/engine/request.h"
#include "fovea/engine/statistics.h"
#include "fovea/infer/chat.h"

namespace fovea {

/// A model that requests can name: a base, or a base with an adapter (load_changed()). All of an
/// engine have one tokenizer. Numbers that two of them share are kept once.
struct EngineModel {
  std::string name;
  LoadedModel loaded;
  std::string parent = {};  ///< the name of the base that it was made from; "" = a base
};

struct EngineOptions {
  int64_t context = 0;  ///< positions of prompt and text; 0 = the model's trained length
  /// Texts written at once, from 1 to kMostSequences.
  int64_t sequences = 32;
  /// Requests that may wait.
  int64_t queue = 256;
  /// Tokens of a prompt that are read between two steps; a multiple of 128. Prefixes are shared in
  /// chunks, and the last bits of a text depend on it.
  int64_t chunk = 256;
  /// Milliseconds that texts at work wait for prompts between two of their tokens, and a layer of a
  /// chunk more at most. They wait as long as their last step where that took longer. A chunk is
  /// interrupted between its layers, which changes no bits.
  int64_t pause_ms = 100;
  /// Bytes that caches of texts and prefixes may take together; 0 = half of the memory that is
  /// left.
  int64_t cache_bytes = 0;
  /// The part of these that prefixes of earlier prompts may take; they make room for texts. 0 = no
  /// prefix cache; -1 = half.
  int64_t prefix_bytes = -1;

  static constexpr int64_t kMostSequences = 1024;

  void describe(FieldVisitor& v);
  /// ConfigError with the key of the first impossible value.
  void check() const;
  bool operator==(const EngineOptions&) const = default;
};

/// A model as the engine serves it.
struct ServedModel {
  std::string name, parent;
  int64_t context = 0;     ///< positions; a prompt may have as many
  int64_t vocabulary = 0;  ///< ids of tokens
  std::string pipeline;    ///< attention of its first layer in words
  /// Why its texts do not share steps; "" where they do.
  std::string why_one_by_one;
};

/// Receives attention rows, or the error that came instead (EngineClosed where the engine was
/// stopped, or the request cancelled); on the engine's thread.
using AttentionRowsDone = std::function<void(std::exception_ptr error, const AttentionRows& rows)>;

class Engine {
 public:
  /// Checks that every model decodes, by a token. ConfigError for impossible options, equal names
  /// and other tokenizers; UnsupportedError naming the model and what does not decode.
  explicit Engine(std::vector<EngineModel> models, const EngineOptions& options = {});
  /// stop().
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Accepts a request; `events` is called until RequestEnded. From any thread, also from events.
  /// Throws what request.h lists; nothing is called then.
  RequestHandle submit(EngineRequest request, EngineEvents events);
  /// The tokens of a request's prompt: its own, or its text's behind the begin mark.
  std::vector<int32_t> prompt_of(const EngineRequest& request) const;

  /// Accepts no more requests; accepted ones go on.
  void drain();
  /// Waits until no request is there, or for `timeout`. Whether none is.
  bool wait(std::chrono::milliseconds timeout = std::chrono::hours(24 * 365));
  /// Ends all requests with `stopped`, within one step, and the thread.
  void stop();

  EngineStatistics statistics() const;
  const EngineOptions& options() const;
  /// The first one answers requests without a name.
  std::span<const ServedModel> models() const;
  /// The tokenizer of all models. Immutable: any thread may use it.
  const Tokenizer& tokenizer() const;
  /// A conversation as tokens, by the template of the first model (encode_conversation()).
  /// UnsupportedError where it has none, or one that cannot be read; InputError where the template
  /// refuses the conversation.
  std::vector<int32_t> encode_chat(std::vector<ChatMessage> messages) const;
  /// Why encode_chat() is not possible; "" where it is.
  std::string why_no_chat() const;

  /// Rows of attention on a text, computed layer by layer between steps. Throws what submit()
  /// throws, and ConfigError for layers, heads and places that do not exist.
  RequestHandle attention_rows(AttentionRowsRequest request, AttentionRowsDone done);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea
