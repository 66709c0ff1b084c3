// Requests for text: bodies of /v1/completions and /v1/chat/completions, read and checked.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/text/chat_template.h"

namespace fovea::serve {

/// One text of a request that the model continues.
struct Prompt {
  std::string text = {};
  std::vector<int32_t> ids = {};  ///< instead of the text, where `is_ids`
  bool is_ids = false;
};

struct CompletionRequest {
  enum class Kind { completion, chat };

  Kind kind = Kind::completion;
  std::string model = {};                  ///< "" = the first one
  std::vector<Prompt> prompts = {};        ///< of a completion
  std::vector<ChatMessage> messages = {};  ///< of a chat
  bool begin_mark = true;                  ///< stands before prompts of text

  std::optional<int64_t> max_tokens = {};  ///< absent = the kind's own (16; all that fit)
  double temperature = 1.0, top_p = 1.0, min_p = 0.0;
  double repetition_penalty = 1.0, frequency_penalty = 0.0, presence_penalty = 0.0;
  int64_t top_k = 0;
  std::optional<int64_t> seed = {};
  int64_t choices = 1;  ///< n: texts for each prompt
  std::vector<std::string> stop = {};
  bool ignore_end = false;
  bool echo = false;
  std::optional<int64_t> logprobs = {};  ///< alternatives of each token; absent = none of it
  bool stream = false;
  bool include_usage = false;  ///< a last event with the counts

  bool is_chat() const { return kind == Kind::chat; }
};

/// Bounds of what a request may ask for.
struct RequestLimits {
  static constexpr int64_t kMostChoices = 16, kMostStops = 16, kMostLogprobs = 20;
  static constexpr size_t kMostMessages = 4096;
  int64_t prompts = 128;  ///< of one request
};

/// Problem naming the field that is unknown, not supported or impossible.
CompletionRequest read_completion(std::string_view body, const RequestLimits& limits = {});
CompletionRequest read_chat(std::string_view body, const RequestLimits& limits = {});

}  // namespace fovea::serve
