// One choice of an answer while it grows: its text, its log-probabilities, why it ended.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>

#include "fovea/engine/request.h"
#include "fovea/serve/completion_request.h"
#include "fovea/serve/logprob_lists.h"
#include "fovea/serve/token_texts.h"

namespace fovea::serve {

/// "stop" or "length".
std::string_view finish_word(FinishReason reason);

class Choice {
 public:
  /// `request` and `texts` must outlive this.
  Choice(const CompletionRequest& request, const TokenTexts& texts, int64_t index);

  /// The prompt stands before the text: its text, its tokens and their log-probabilities.
  void echo(const std::string& prompt, std::span<const int32_t> tokens, const PromptRead& read);
  /// Without echo: offsets of tokens count from the end of the prompt.
  void follow(const std::string& prompt) { offset_ = characters_of(prompt); }
  void write(const TokenWritten& token);
  void end(const ChoiceEnded& ended);

  bool ended() const { return reason_.has_value(); }
  int64_t index() const { return index_; }
  /// Whether something is there that no event has told.
  bool has_news() const;
  /// The object of "choices" of a whole answer.
  Json whole();
  /// An event of a stream with the news alone. A chat's first event names the role.
  Json news();
  Json first_of_chat() const;

 private:
  Json logprobs();
  Json reason() const;
  void add_token(int32_t token, const std::optional<PlaceLogprobs>& place);

  const CompletionRequest& request_;
  int64_t index_;
  std::string text_;  // since the last event
  LogprobLists lists_;
  IncrementalDecoder decoder_;  // of the tokens, for their offsets
  int64_t offset_ = 0;
  std::optional<FinishReason> reason_;
  bool told_end_ = false;
};

}  // namespace fovea::serve
