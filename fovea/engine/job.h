// A request at work: its prompt while it is read, then its texts while they are written. Private to
// fovea/engine.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fovea/engine/request.h"
#include "fovea/engine/text_model.h"
#include "fovea/infer/text_writer.h"
#include "fovea/nn/layer_walk.h"

namespace fovea {

using EngineClock = std::chrono::steady_clock;

/// One text of a request.
struct WrittenText {
  int64_t choice = 0;
  DecodeState state;
  std::vector<int32_t> tokens;  // new ones; the last is not in the cache yet
  TextWriter writer;
  size_t shown = 0;  // bytes of the text that events told
  bool ended = false;
  EngineClock::time_point last_token;

  /// The text that is certain now and that no event told.
  std::string take_piece() {
    const std::string& text = writer.result().text;
    std::string piece = text.substr(shown);
    shown = text.size();
    return piece;
  }
};

/// A part of a prompt on its way through the layers.
struct PartAtWork {
  DecodeState state;
  int64_t count = 0;              // tokens
  std::optional<LayerWalk> walk;  // none where one step reads it
};

/// A request from submit() to RequestEnded.
struct EngineJob {
  EngineRequest request;
  EngineEvents events;
  std::vector<int32_t> prompt;
  TextModel* model = nullptr;
  std::function<bool()> cancelled;
  EngineClock::time_point submitted;
  std::optional<EngineClock::time_point> deadline;
  int64_t bytes = 0;  // reserved for its caches

  SharedState read;                  // after the whole chunks that were read
  int64_t length = 0;                // tokens of the prompt that were read
  std::unique_ptr<PartAtWork> part;  // the next tokens
  int64_t cached = 0;
  std::vector<std::optional<PlaceLogprobs>> prompt_logprobs;

  std::vector<std::unique_ptr<WrittenText>> texts;  // once the prompt is read
  int64_t tokens = 0;
  bool ended = false;

  int64_t prompt_size() const { return static_cast<int64_t>(prompt.size()); }
  bool reading() const { return !ended && texts.empty(); }
  /// New tokens that a text may have, within the context.
  int64_t most_tokens() const {
    return std::min(request.generate.max_tokens, model->context() - prompt_size());
  }
};

}  // namespace fovea
