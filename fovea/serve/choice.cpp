// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/choice.h"

namespace fovea::serve {

std::string_view finish_word(FinishReason reason) {
  return reason == FinishReason::end || reason == FinishReason::stop ? "stop" : "length";
}

Choice::Choice(const CompletionRequest& request, const TokenTexts& texts, int64_t index)
    : request_(request),
      index_(index),
      lists_(request.is_chat() ? LogprobLists::Shape::chat : LogprobLists::Shape::completion,
             texts),
      decoder_(texts.tokenizer(),
               request.echo ? IncrementalDecoder::From::start : IncrementalDecoder::From::middle) {}

void Choice::add_token(int32_t token, const std::optional<PlaceLogprobs>& place) {
  lists_.add(token, place, offset_);
  offset_ += characters_of(decoder_.push(token));
}

void Choice::echo(const std::string& prompt, std::span<const int32_t> tokens,
                  const PromptRead& read) {
  text_ += prompt;
  if (!request_.logprobs) return;
  for (size_t i = 0; i < tokens.size(); ++i)
    add_token(tokens[i], i < read.logprobs.size() ? read.logprobs[i] : std::nullopt);
}

void Choice::write(const TokenWritten& token) {
  text_ += token.text;
  if (request_.logprobs) add_token(token.token, token.logprobs);
}

void Choice::end(const ChoiceEnded& ended) {
  text_ += ended.text;
  reason_ = ended.reason;
}

bool Choice::has_news() const {
  return !text_.empty() || !lists_.empty() || (reason_ && !told_end_);
}

Json Choice::logprobs() { return request_.logprobs ? lists_.take() : Json(); }

Json Choice::reason() const { return reason_ ? Json(finish_word(*reason_)) : Json(); }

Json Choice::whole() {
  Json choice{{"index", index_}};
  if (request_.is_chat()) {
    choice["message"] = {{"role", "assistant"}, {"content", text_}, {"refusal", nullptr}};
  } else {
    choice["text"] = text_;
  }
  choice["logprobs"] = logprobs();
  choice["finish_reason"] = reason();
  return choice;
}

Json Choice::news() {
  Json choice{{"index", index_}};
  // The last event of a chat's choice has no text.
  const bool more_to_tell = request_.is_chat() && (!text_.empty() || !lists_.empty());
  if (request_.is_chat()) {
    choice["delta"] = text_.empty() ? Json::object() : Json{{"content", text_}};
  } else {
    choice["text"] = text_;
  }
  text_.clear();
  choice["logprobs"] = lists_.empty() ? Json() : logprobs();
  choice["finish_reason"] = more_to_tell ? Json() : reason();
  told_end_ = reason_.has_value() && !more_to_tell;
  return choice;
}

Json Choice::first_of_chat() const {
  return {{"index", index_},
          {"delta", {{"role", "assistant"}, {"content", ""}}},
          {"logprobs", nullptr},
          {"finish_reason", nullptr}};
}

}  // namespace fovea::serve
