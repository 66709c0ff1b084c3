// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/logprob_lists.h"

#include <algorithm>
#include <cmath>

namespace fovea::serve {
namespace {

/// JSON has no infinity; OpenAI writes -9999 for what is as good as impossible.
constexpr double kImpossible = -9999.0;

double finite_logprob(double logprob) {
  return std::isfinite(logprob) ? std::max(logprob, kImpossible) : kImpossible;
}

}  // namespace

LogprobLists::LogprobLists(Shape shape, const TokenTexts& texts) : shape_(shape), texts_(texts) {
  clear();
}

void LogprobLists::clear() {
  count_ = 0;
  lists_ = shape_ == Shape::chat
               ? Json{{"content", Json::array()}, {"refusal", nullptr}}
               : Json{{"tokens", Json::array()},       {"token_logprobs", Json::array()},
                      {"top_logprobs", Json::array()}, {"text_offset", Json::array()},
                      {"token_ids", Json::array()},    {"top_token_ids", Json::array()}};
}

Json LogprobLists::take() {
  Json lists = std::move(lists_);
  clear();
  return lists;
}

void LogprobLists::add(int32_t token, const std::optional<PlaceLogprobs>& place, int64_t offset) {
  ++count_;
  if (shape_ == Shape::completion) {
    add_completion(token, place, offset);
  } else if (place) {
    add_chat(*place);
  }
}

void LogprobLists::add_completion(int32_t token, const std::optional<PlaceLogprobs>& place,
                                  int64_t offset) {
  lists_["tokens"].push_back(texts_.name(token));
  lists_["text_offset"].push_back(offset);
  lists_["token_ids"].push_back(token);
  if (!place) {
    lists_["token_logprobs"].push_back(nullptr);
    lists_["top_logprobs"].push_back(nullptr);
    lists_["top_token_ids"].push_back(nullptr);
    return;
  }
  lists_["token_logprobs"].push_back(finite_logprob(place->token.logprob));
  Json top = Json::object(), ids = Json::object();
  const auto add_one = [&](const TokenLogprob& one) {
    const std::string name = texts_.name(one.token);
    if (top.contains(name)) return;
    top[name] = finite_logprob(one.logprob);
    ids[name] = one.token;
  };
  // The likeliest of tokens with one name counts; the token that stands here is always among them.
  for (const TokenLogprob& one : place->top) add_one(one);
  add_one(place->token);
  lists_["top_logprobs"].push_back(std::move(top));
  lists_["top_token_ids"].push_back(std::move(ids));
}

void LogprobLists::add_chat(const PlaceLogprobs& place) {
  const auto entry = [&](const TokenLogprob& one) {
    return Json{{"token", texts_.name(one.token)},
                {"logprob", finite_logprob(one.logprob)},
                {"bytes", texts_.bytes(one.token)}};
  };
  Json record = entry(place.token);
  record["top_logprobs"] = Json::array();
  for (const TokenLogprob& one : place.top) record["top_logprobs"].push_back(entry(one));
  lists_["content"].push_back(std::move(record));
}

}  // namespace fovea::serve
