// Bodies of /v1/attention, /tokenize and /detokenize, read and checked.
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

struct AttentionRequest {
  static constexpr int64_t kMostRows = 64, kMostKeys = 1024, kMostWeights = 500'000;

  std::string model = {};
  std::optional<std::string> text = {};  ///< this or ids
  std::vector<int32_t> ids = {};
  std::vector<int64_t> rows = {-1};  ///< negative: from the end
  std::vector<int64_t> layers = {}, heads = {};
  int64_t keys = 16;
};
AttentionRequest read_attention(std::string_view body);

struct TokenizeRequest {
  std::string model = {};
  std::string prompt = {};
  std::vector<ChatMessage> messages = {};  ///< instead of the prompt, unless there are none
  bool begin_mark = true;
  bool strings = false;  ///< return_token_strs
};
TokenizeRequest read_tokenize(std::string_view body);

struct DetokenizeRequest {
  std::string model = {};
  std::vector<int32_t> tokens = {};
};
DetokenizeRequest read_detokenize(std::string_view body);

}  // namespace fovea::serve
