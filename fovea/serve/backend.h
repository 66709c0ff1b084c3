// Backend: the engine as the routes see it. Tests of routes have another one.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/engine/engine.h"

namespace fovea::serve {

/// Facts about a model that /v1/models tells.
struct ModelFacts {
  std::string name, parent;
  std::string root = {};  ///< where it was read from
  int64_t context = 0, vocabulary = 0, layers = 0, heads = 0;
  std::vector<std::string> pipelines = {};  ///< of each layer, in words
  std::vector<bool> signed_weights = {};    ///< of each layer: weights may be negative
  bool focus = false;
};

/// The facts of a loaded model, but for its names and its context.
ModelFacts facts_of(const LoadedModel& loaded);

/// All members may be called from any thread.
class Backend {
 public:
  virtual ~Backend() = default;

  /// The first one answers requests without a name.
  virtual std::span<const ModelFacts> models() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  /// As Engine::encode_chat() and Engine::why_no_chat().
  virtual std::vector<int32_t> encode_chat(std::vector<ChatMessage> messages) const = 0;
  virtual std::string why_no_chat() const = 0;
  /// Requests that may wait.
  virtual int64_t queue() const = 0;
  /// As Engine::submit(); the result cancels the request.
  virtual std::function<void()> submit(EngineRequest request, EngineEvents events) = 0;
  /// As Engine::attention_rows(); the result cancels the request.
  virtual std::function<void()> attention_rows(AttentionRowsRequest request,
                                               AttentionRowsDone done) = 0;
  virtual EngineStatistics statistics() const = 0;
  virtual void drain() = 0;
  virtual void stop() = 0;
};

/// The engine, which must outlive this; `facts` in the order of Engine::models(), which gives names
/// and contexts.
std::unique_ptr<Backend> engine_backend(Engine& engine, std::vector<ModelFacts> facts);

}  // namespace fovea::serve
