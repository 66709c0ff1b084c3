// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/attention_exchange.h"

#include <algorithm>
#include <map>

namespace fovea::serve {
namespace {

struct RowsEvent {
  std::exception_ptr error;
  AttentionRows rows;
};

class AttentionExchange final : public Exchange {
 public:
  AttentionExchange(const ExchangeContext& context, const ModelFacts& model,
                    std::vector<int64_t> rows, Wake wake)
      : context_(context),
        model_(model),
        rows_(std::move(rows)),
        inbox_(std::make_shared<Inbox<RowsEvent>>(std::move(wake))) {}

  ~AttentionExchange() override {
    if (cancel_) cancel_();
  }

  void start(AttentionRowsRequest request) {
    cancel_ = context_.backend.attention_rows(
        std::move(request), [inbox = inbox_](std::exception_ptr error, const AttentionRows& rows) {
          inbox->push({std::move(error), rows}, 0);
        });
  }
  void collect() override {
    for (RowsEvent& event : inbox_->take()) {
      if (event.error) std::rethrow_exception(event.error);
      found_ = std::move(event.rows);
    }
  }
  bool finished() const override { return found_.has_value(); }
  HttpResponse response() override {
    return json_response(attention_json(model_, context_.texts, *found_, rows_));
  }
  void cancel() override {
    if (cancel_) cancel_();
  }

 private:
  const ExchangeContext& context_;
  const ModelFacts& model_;
  std::vector<int64_t> rows_;
  std::shared_ptr<Inbox<RowsEvent>> inbox_;
  std::function<void()> cancel_;
  std::optional<AttentionRows> found_;
};

/// Places from 0, each once, in their order.
std::vector<int64_t> places_of(const std::vector<int64_t>& rows, int64_t tokens) {
  std::vector<int64_t> places;
  for (const int64_t row : rows) {
    if (row < -tokens || row >= tokens)
      refuse("rows", "'rows' must hold places from {} to {} of this text's {} tokens; got {}",
             -tokens, tokens - 1, tokens, row);
    const int64_t place = row < 0 ? tokens + row : row;
    if (std::ranges::find(places, place) == places.end()) places.push_back(place);
  }
  return places;
}

/// Numbers from 0 to below `count`, each once; all where none is asked for.
std::vector<int64_t> chosen(std::string_view key, std::vector<int64_t> numbers, int64_t count) {
  for (const int64_t number : numbers)
    if (number < 0 || number >= count)
      refuse(key, "'{}' must hold numbers from 0 to {}; got {}", key, count - 1, number);
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  if (!numbers.empty()) return numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

Json row_json(const AttentionRow& row) {
  Json keys = Json::array(), weights = Json::array();
  for (const KeyWeight& one : row.keys) {
    keys.push_back(one.key);
    weights.push_back(one.weight);
  }
  return {{"row", row.query},
          {"keys", std::move(keys)},
          {"weights", std::move(weights)},
          {"rest", row.rest}};
}

/// The heads of one layer, each with its rows.
Json heads_json(const AttentionRows& found, int64_t layer) {
  std::map<int64_t, Json> rows_of;
  for (const AttentionRow& row : found.rows)
    if (row.layer == layer) rows_of[row.head].push_back(row_json(row));
  Json heads = Json::array();
  for (auto& [head, rows] : rows_of) heads.push_back({{"head", head}, {"rows", std::move(rows)}});
  return heads;
}

Json pruned_json(const AttentionRows& found, int64_t layer) {
  Json all = Json::array();
  for (const PrunedKeys& one : found.pruned)
    if (one.layer == layer)
      all.push_back({{"row", one.query},
                     {"visible", one.visible},
                     {"dropped", one.keys.size()},
                     {"keys", one.keys}});
  return all;
}

/// The entries of a list of `fovea inspect --json` that belong to one layer.
Json of_layer(const Json& list, int64_t layer) {
  Json some = Json::array();
  for (const Json& one : list)
    if (one["layer"] == layer) some.push_back(one);
  return some;
}

}  // namespace

Json attention_json(const ModelFacts& model, const TokenTexts& texts, const AttentionRows& found,
                    const std::vector<int64_t>& rows) {
  const Json inspected = inspect_json({.models = {found.inspected}})["models"][0];
  Json tokens = Json::array();
  for (const int32_t token : found.tokens) tokens.push_back(texts.name(token));
  Json layers = Json::array();
  for (const Json& of : inspected["layers"]) {
    const auto layer = of["layer"].get<int64_t>();
    Json heads = heads_json(found, layer);
    if (heads.empty()) continue;  // not asked for
    Json one{{"layer", layer},
             {"pipeline", of["pipeline"]},
             {"temperature", of["temperature"]},
             {"signed", static_cast<bool>(model.signed_weights[static_cast<size_t>(layer)])},
             {"entropy", of["entropy"]},
             {"largest_weight", of["largest_weight"]},
             {"sink_mass", of["sink_mass"]},
             {"heads", std::move(heads)},
             {"kernels", of_layer(inspected["kernels"], layer)},
             {"head_mixes", of_layer(inspected["head_mixes"], layer)}};
    const Json focus = of_layer(inspected["focus"], layer);
    one["focus"] = focus.empty() ? Json() : focus[0];
    one["pruned"] = pruned_json(found, layer);
    layers.push_back(std::move(one));
  }
  const size_t count = found.tokens.size();
  return {{"object", "attention"},
          {"model", model.name},
          {"tokens", std::move(tokens)},
          {"ids", found.tokens},
          {"rows", rows},
          {"layers", std::move(layers)},
          {"usage", {{"prompt_tokens", count}, {"total_tokens", count}}}};
}

std::unique_ptr<Exchange> start_attention(const ExchangeContext& context, AttentionRequest request,
                                          Wake wake) {
  const ModelFacts& model = model_named(context.backend, request.model);
  const Tokenizer& tokenizer = context.texts.tokenizer();
  std::vector<int32_t> tokens = std::move(request.ids);
  if (request.text) {
    if (tokenizer.bos() >= 0) tokens.push_back(tokenizer.bos());
    tokenizer.append(*request.text, tokens);
    if (tokens.empty()) refuse("text", "'text' must have a token; it is empty");
  }
  for (const int32_t id : tokens)
    if (id >= model.vocabulary)
      refuse("ids", "'ids' must hold ids below {}; got {}", model.vocabulary, id);
  const auto count = static_cast<int64_t>(tokens.size());
  if (count > model.context)
    throw PromptTooLong("[serve] the text is too long", count, model.context);
  const std::vector<int64_t> rows = places_of(request.rows, count);
  const std::vector<int64_t> layers = chosen("layers", std::move(request.layers), model.layers);
  const std::vector<int64_t> heads = chosen("heads", std::move(request.heads), model.heads);
  const int64_t weights =
      std::ssize(rows) * std::ssize(layers) * std::ssize(heads) * std::min(request.keys, count);
  if (weights > AttentionRequest::kMostWeights)
    refuse("k", "rows x layers x heads x k must be at most {}; got {}: ask for fewer",
           AttentionRequest::kMostWeights, weights);
  auto exchange = std::make_unique<AttentionExchange>(context, model, rows, std::move(wake));
  exchange->start({.model = model.name,
                   .tokens = std::move(tokens),
                   .queries = rows,
                   .layers = layers,
                   .heads = heads,
                   .keys = request.keys,
                   .deadline = context.deadline});
  return exchange;
}

}  // namespace fovea::serve
