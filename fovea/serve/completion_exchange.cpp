// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/completion_exchange.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <random>

#include "fovea/base/error.h"
#include "fovea/serve/choice.h"

namespace fovea::serve {
namespace {

constexpr int64_t kCompletionTokens = 16;  // OpenAI's max_tokens where none is given
constexpr int kRetryAfterRestart = 30;

/// An event of the request of one prompt.
struct PromptEvent {
  size_t prompt = 0;
  EngineEvent event;
};

int64_t random_seed() {
  static thread_local std::mt19937_64 numbers{std::random_device{}()};
  return static_cast<int64_t>(numbers() >> 11);  // 53 bits
}

/// Unlike that of any other answer, also of an earlier start of the server.
std::string answer_id(bool chat) {
  static std::atomic<uint64_t> next{std::random_device{}()};
  return fmt::format("{}-{:x}", chat ? "chatcmpl" : "cmpl",
                     (static_cast<uint64_t>(std::time(nullptr)) << 32) ^ next.fetch_add(1));
}

GenerateOptions generate_options(const CompletionRequest& request, const ModelFacts& model) {
  const int64_t most = request.is_chat() ? model.context : kCompletionTokens;
  GenerateOptions options{.sampling = {.temperature = request.temperature,
                                       .top_k = request.top_k,
                                       .top_p = request.top_p,
                                       .min_p = request.min_p,
                                       .repetition_penalty = request.repetition_penalty,
                                       .frequency_penalty = request.frequency_penalty,
                                       .presence_penalty = request.presence_penalty},
                          .max_tokens = std::min(request.max_tokens.value_or(most), model.context),
                          .seed = request.seed.value_or(random_seed()),
                          .stop = request.stop};
  // Sampling counts seeds from 0.
  if (options.seed < 0) options.seed = (1ll << 53) + options.seed;
  return options;
}

size_t bytes_of_event(const EngineEvent& event) {
  constexpr size_t kFixed = 64, kLogprob = 24;
  const auto* written = std::get_if<TokenWritten>(&event);
  if (written == nullptr) return kFixed;
  return kFixed + written->text.size() +
         (written->logprobs ? kLogprob * (written->logprobs->top.size() + 1) : 0);
}

/// Why the request ended before it was done.
Problem problem_of_end(const RequestEnded& ended) {
  switch (ended.outcome) {
    case RequestOutcome::deadline:
      return too_late();
    case RequestOutcome::stopped:
      return overloaded("the server is shutting down", kRetryAfterRestart);
    case RequestOutcome::cancelled:
      return overloaded("the request was cancelled: its events were not read fast enough", 1);
    default:
      if (ended.no_memory) return overloaded(without_place(ended.error), 1);
      return {500, "server_error", without_place(ended.error)};
  }
}

class CompletionExchange final : public Exchange {
 public:
  CompletionExchange(const ExchangeContext& context, CompletionRequest request,
                     const ModelFacts& model, Wake wake)
      : context_(context),
        request_(std::move(request)),
        model_(model),
        inbox_(std::make_shared<Inbox<PromptEvent>>(std::move(wake))),
        id_(answer_id(request_.is_chat())),
        created_(std::time(nullptr)) {}
  ~CompletionExchange() override { cancel_all(); }

  void start() {
    read_prompts();
    for (size_t p = 0; p < prompts_.size(); ++p)
      for (int64_t n = 0; n < request_.choices; ++n)
        choices_.emplace_back(request_, context_.texts,
                              static_cast<int64_t>(p) * request_.choices + n);
    try {
      for (size_t p = 0; p < prompts_.size(); ++p) submit(p);
    } catch (...) {
      cancel_all();  // all prompts or none
      throw;
    }
  }

  void collect() override {
    for (const PromptEvent& event : inbox_->take())
      std::visit([&](const auto& e) { take(event.prompt, e); }, event.event);
  }
  bool finished() const override { return ended_ == prompts_.size(); }
  bool streams() const override { return request_.stream; }
  void cancel() override { cancel_all(); }
  std::string take_text() override;
  HttpResponse response() override;

 private:
  /// A prompt as the answer shows it.
  struct PromptText {
    std::string text;
    std::vector<int32_t> tokens;  // where the engine gets ids, or the answer shows them
  };

  void read_prompts();
  void submit(size_t p);
  void cancel_all() {
    for (const std::function<void()>& cancel : cancels_) cancel();
    cancels_.clear();
  }
  Choice& choice(size_t prompt, int64_t n) {
    return choices_[prompt * static_cast<size_t>(request_.choices) + static_cast<size_t>(n)];
  }
  void take(size_t prompt, const PromptRead& read);
  void take(size_t prompt, const TokenWritten& token) { choice(prompt, token.choice).write(token); }
  void take(size_t prompt, const ChoiceEnded& end) { choice(prompt, end.choice).end(end); }
  void take(size_t prompt, const RequestEnded& ended);
  Json head(std::string_view object) const;
  Json usage() const;

  const ExchangeContext& context_;
  const CompletionRequest request_;
  const ModelFacts& model_;
  std::shared_ptr<Inbox<PromptEvent>> inbox_;
  std::string id_;
  std::time_t created_;
  std::vector<PromptText> prompts_;
  std::vector<Choice> choices_;
  std::vector<std::function<void()>> cancels_;
  size_t ended_ = 0;  // prompts
  bool began_ = false, told_role_ = false, told_done_ = false;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, tokens_ = 0;
};

void CompletionExchange::read_prompts() {
  if (request_.is_chat()) {
    if (const std::string why = context_.backend.why_no_chat(); !why.empty())
      refuse("messages", "this model takes no conversations: {}; use /v1/completions", why);
    prompts_.push_back({.text = "", .tokens = context_.backend.encode_chat(request_.messages)});
    return;
  }
  const Tokenizer& tokenizer = context_.texts.tokenizer();
  for (const Prompt& prompt : request_.prompts) {
    if (prompt.is_ids) {
      for (const int32_t id : prompt.ids)
        if (id >= model_.vocabulary)
          refuse("prompt", "'prompt' must hold ids below {}; got {}", model_.vocabulary, id);
      prompts_.push_back({.text = tokenizer.decode(prompt.ids), .tokens = prompt.ids});
      continue;
    }
    std::vector<int32_t> tokens;
    if (request_.begin_mark && tokenizer.bos() >= 0) tokens.push_back(tokenizer.bos());
    tokenizer.append(prompt.text, tokens);
    if (tokens.empty()) refuse("prompt", "'prompt' must have a token; it is empty");
    prompts_.push_back({.text = repair_utf8(prompt.text), .tokens = std::move(tokens)});
  }
}

void CompletionExchange::submit(size_t p) {
  EngineRequest request{.model = model_.name,
                        .tokens = prompts_[p].tokens,
                        .generate = generate_options(request_, model_),
                        .choices = request_.choices,
                        .top_logprobs = request_.logprobs,
                        .ignore_end = request_.ignore_end,
                        .deadline = context_.deadline};
  if (request_.echo && request_.logprobs) request.prompt_logprobs = request_.logprobs;
  // The inbox alone is shared: the exchange may be gone when events come.
  const auto events = [inbox = inbox_, p, lost = false](const EngineEvent& event) mutable {
    const bool last = std::holds_alternative<RequestEnded>(event);
    if (lost && !last) return;
    const size_t bytes = last ? 0 : bytes_of_event(event);
    if (!inbox->push({p, event}, bytes)) {
      lost = true;
      // The engine cancels a request whose events throw.
      if (!last) throw EngineBusy("[serve] the client reads its stream too slowly");
    }
  };
  cancels_.push_back(context_.backend.submit(std::move(request), events));
}

void CompletionExchange::take(size_t prompt, const PromptRead& read) {
  began_ = true;
  prompt_tokens_ += read.tokens;
  cached_tokens_ += read.cached;
  for (int64_t n = 0; n < request_.choices; ++n) {
    if (request_.echo) {
      choice(prompt, n).echo(prompts_[prompt].text, prompts_[prompt].tokens, read);
    } else {
      choice(prompt, n).follow(prompts_[prompt].text);
    }
  }
}

void CompletionExchange::take(size_t /*prompt*/, const RequestEnded& ended) {
  tokens_ += ended.tokens;
  if (ended.outcome != RequestOutcome::done) {
    cancel_all();
    throw problem_of_end(ended);
  }
  ++ended_;
}

Json CompletionExchange::head(std::string_view object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_.name}};
}

Json CompletionExchange::usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", tokens_},
          {"total_tokens", prompt_tokens_ + tokens_},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens_}}}};
}

HttpResponse CompletionExchange::response() {
  Json answer = head(request_.is_chat() ? "chat.completion" : "text_completion");
  answer["choices"] = Json::array();
  for (Choice& choice : choices_) answer["choices"].push_back(choice.whole());
  answer["usage"] = usage();
  return json_response(answer);
}

std::string CompletionExchange::take_text() {
  const std::string_view object = request_.is_chat() ? "chat.completion.chunk" : "text_completion";
  std::string text;
  const auto tell = [&](Json choices, Json counts = {}) {
    Json event = head(object);
    event["choices"] = std::move(choices);
    if (request_.include_usage) event["usage"] = std::move(counts);
    text += event_text(event);
  };
  if (!began_) return text;
  if (request_.is_chat() && !told_role_) {
    for (const Choice& choice : choices_) tell(Json::array({choice.first_of_chat()}));
    told_role_ = true;
  }
  for (Choice& choice : choices_)
    while (choice.has_news()) tell(Json::array({choice.news()}));
  if (finished() && !told_done_) {
    if (request_.include_usage) tell(Json::array(), usage());
    text += "data: [DONE]\n\n";
    told_done_ = true;
  }
  return text;
}

}  // namespace

const ModelFacts& model_named(const Backend& backend, const std::string& name) {
  const std::span<const ModelFacts> models = backend.models();
  if (name.empty()) return models.front();
  std::vector<std::string> names;
  for (const ModelFacts& model : models) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  constexpr size_t kShownName = 100;
  Problem problem(404, "not_found_error",
                  fmt::format("the model '{}' does not exist; this server has {}",
                              name.substr(0, kShownName), fmt::join(names, ", ")));
  problem.param = "model";
  problem.code = "model_not_found";
  throw problem;
}

std::unique_ptr<Exchange> start_completion(const ExchangeContext& context,
                                           CompletionRequest request, Wake wake) {
  const ModelFacts& model = model_named(context.backend, request.model);
  auto exchange =
      std::make_unique<CompletionExchange>(context, std::move(request), model, std::move(wake));
  exchange->start();
  return exchange;
}

}  // namespace fovea::serve
