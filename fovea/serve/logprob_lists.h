// Log-probabilities of one text in the two shapes of OpenAI: of completions and of chats.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "fovea/engine/request.h"
#include "fovea/serve/token_texts.h"

namespace fovea::serve {

class LogprobLists {
 public:
  enum class Shape { completion, chat };

  /// `texts` must outlive this.
  LogprobLists(Shape shape, const TokenTexts& texts);

  /// A token at a place, without log-probabilities where it follows nothing. `offset`: characters
  /// of the text before it.
  void add(int32_t token, const std::optional<PlaceLogprobs>& place, int64_t offset);
  bool empty() const { return count_ == 0; }
  /// The lists since the last call.
  Json take();

 private:
  void add_completion(int32_t token, const std::optional<PlaceLogprobs>& place, int64_t offset);
  void add_chat(const PlaceLogprobs& place);
  void clear();

  Shape shape_;
  const TokenTexts& texts_;
  Json lists_;
  int64_t count_ = 0;
};

}  // namespace fovea::serve
