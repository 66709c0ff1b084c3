// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/routes.h"

#include <algorithm>
#include <array>

#include "fovea/serve/attention_exchange.h"
#include "fovea/serve/page.h"
#include "fovea/serve/small_requests.h"

namespace fovea::serve {
namespace {

constexpr std::string_view kModels = "/v1/models/", kPage = "/page/";
constexpr int64_t kMostPromptsOfRequest = 1024;

Json model_json(const ModelFacts& model, std::time_t created, bool chat) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "fovea"},
          {"root", model.root},
          {"parent", model.parent.empty() ? Json() : Json(model.parent)},
          {"max_model_len", model.context},
          {"fovea",
           {{"layers", model.layers},
            {"heads", model.heads},
            {"vocab_size", model.vocabulary},
            {"attention", model.pipelines},
            {"focus", model.focus},
            {"chat_template", chat},
            {"signed_weights",
             std::ranges::find(model.signed_weights, true) != model.signed_weights.end()}}}};
}

HttpResponse text_response(std::string text, std::string_view type) {
  return {.content_type = std::string(type), .body = std::move(text)};
}

}  // namespace

/// One row of the table of routes.
struct Routes::Route {
  std::string_view method, path;
  bool quick;  ///< on the thread of all connections
  bool open;   ///< without an API key
  Answer (*answer)(const Routes&, const HttpRequest&, const HttpStatistics&, Wake&);
};

std::span<const Routes::Route> Routes::table() {
  using R = const Routes&;
  using Q = const HttpRequest&;
  using S = const HttpStatistics&;
  static constexpr auto kTable = std::to_array<Route>({
      {"GET", "/", true, true, [](R r, Q q, S, Wake&) { return r.page(q); }},
      {"GET", kPage, true, true, [](R r, Q q, S, Wake&) { return r.page(q); }},
      {"GET", "/health", true, true, [](R r, Q, S, Wake&) { return r.health(); }},
      {"GET", "/metrics", true, true,
       [](R r, Q, S http, Wake&) -> Answer {
         return text_response(
             metrics_text(r.backend_.statistics(), http, r.backend_.models().front().name),
             "text/plain; version=0.0.4; charset=utf-8");
       }},
      {"GET", "/v1/models", true, false, [](R r, Q, S, Wake&) { return r.models(); }},
      {"GET", kModels, true, false,
       [](R r, Q q, S, Wake&) { return r.model(q.path().substr(kModels.size())); }},
      {"POST", "/v1/completions", false, false,
       [](R r, Q q, S, Wake& wake) -> Answer {
         const int64_t most = std::min(kMostPromptsOfRequest, r.backend_.queue());
         return start_completion(r.context_, read_completion(q.body, {.prompts = most}),
                                 std::move(wake));
       }},
      {"POST", "/v1/chat/completions", false, false,
       [](R r, Q q, S, Wake& wake) -> Answer {
         return start_completion(r.context_, read_chat(q.body), std::move(wake));
       }},
      {"POST", "/v1/attention", false, false,
       [](R r, Q q, S, Wake& wake) -> Answer {
         return start_attention(r.context_, read_attention(q.body), std::move(wake));
       }},
      {"POST", "/tokenize", false, false, [](R r, Q q, S, Wake&) { return r.tokenize(q); }},
      {"POST", "/detokenize", false, false, [](R r, Q q, S, Wake&) { return r.detokenize(q); }},
  });
  return kTable;
}

Routes::Routes(Backend& backend, RouteOptions options)
    : backend_(backend),
      options_(std::move(options)),
      texts_(backend.tokenizer()),
      context_{.backend = backend, .texts = texts_, .deadline = options_.deadline},
      started_(std::time(nullptr)) {}

const Routes::Route* Routes::find(const HttpRequest& request) const {
  const std::string_view path = request.path();
  for (const Route& route : table()) {
    const bool prefix = route.path.size() > 1 && route.path.ends_with('/');
    if (prefix ? path.size() > route.path.size() && path.starts_with(route.path)
               : path == route.path)
      return &route;
  }
  return nullptr;
}

std::string Routes::name_of(const HttpRequest& request) const {
  const Route* route = find(request);
  return route == nullptr ? "other" : std::string(route->path);
}

bool Routes::is_quick(const HttpRequest& request) const {
  const Route* route = find(request);
  return route == nullptr || route->quick;
}

Problem Routes::report(const HttpRequest& request, const std::exception& error) const {
  Problem problem = problem_of(error);
  if (problem.status >= 500 && problem.status != 503)
    options_.log(fmt::format("{} {} failed: {}", request.method, name_of(request), error.what()));
  return problem;
}

std::optional<HttpResponse> Routes::refuse_head(const HttpRequest& request) const {
  try {
    const Route* route = find(request);
    check_origin(request);
    if (route == nullptr) {
      constexpr size_t kShownPath = 100;
      throw Problem(404, "not_found_error",
                    fmt::format("there is no route {}; docs/serving.md lists them",
                                request.path().substr(0, kShownPath)));
    }
    const bool preflight = request.method == "OPTIONS" && is_allowed_origin(request.origin);
    if (preflight) return HttpResponse{.status = 204, .content_type = ""};
    const bool fits =
        request.method == route->method || (request.method == "HEAD" && route->method == "GET");
    if (!fits) {
      Problem problem(
          405, "invalid_request_error",
          fmt::format("{} takes {}; got {}", route->path, route->method, request.method));
      problem.allow = route->method == "GET" ? "GET, HEAD" : route->method;
      throw problem;
    }
    if (!route->open) check_key(request);
  } catch (const Problem& problem) {
    return problem_response(problem);
  }
  return std::nullopt;
}

Routes::Answer Routes::answer(const HttpRequest& request, const HttpStatistics& http,
                              Wake wake) const {
  if (auto refusal = refuse_head(request)) return *std::move(refusal);
  try {
    return find(request)->answer(*this, request, http, wake);
  } catch (const std::exception& error) {
    return problem_response(report(request, error));
  }
}

Routes::Answer Routes::page(const HttpRequest& request) const {
  const std::string_view path = request.path();
  const std::string_view name = path == "/" ? "index.html" : path.substr(kPage.size());
  for (const PageFile& file : page_files())
    if (file.name == name) return text_response(std::string(file.content), media_type(name));
  throw Problem(404, "not_found_error", "the page has no such file");
}

Routes::Answer Routes::health() const {
  if (draining_) return json_response({{"status", "draining"}}, 503);
  return json_response({{"status", "ok"}});
}

Routes::Answer Routes::models() const {
  const bool chat = backend_.why_no_chat().empty();
  Json list = Json::array();
  for (const ModelFacts& model : backend_.models())
    list.push_back(model_json(model, started_, chat));
  return json_response({{"object", "list"}, {"data", std::move(list)}});
}

Routes::Answer Routes::model(std::string_view name) const {
  return json_response(model_json(model_named(backend_, std::string(name)), started_,
                                  backend_.why_no_chat().empty()));
}

Routes::Answer Routes::tokenize(const HttpRequest& request) const {
  const TokenizeRequest what = read_tokenize(request.body);
  const ModelFacts& model = model_named(backend_, what.model);
  const Tokenizer& tokenizer = backend_.tokenizer();
  std::vector<int32_t> tokens;
  if (!what.messages.empty()) {
    if (const std::string why = backend_.why_no_chat(); !why.empty())
      refuse("messages", "this model takes no conversations: {}", why);
    tokens = backend_.encode_chat(what.messages);
  } else {
    if (what.begin_mark && tokenizer.bos() >= 0) tokens.push_back(tokenizer.bos());
    tokenizer.append(what.prompt, tokens);
  }
  Json strings = Json::array();
  if (what.strings)
    for (const int32_t token : tokens) strings.push_back(texts_.name(token));
  return json_response({{"count", tokens.size()},
                        {"max_model_len", model.context},
                        {"tokens", tokens},
                        {"token_strs", what.strings ? std::move(strings) : Json()}});
}

Routes::Answer Routes::detokenize(const HttpRequest& request) const {
  const DetokenizeRequest what = read_detokenize(request.body);
  model_named(backend_, what.model);
  const Tokenizer& tokenizer = backend_.tokenizer();
  for (const int32_t token : what.tokens)
    if (token >= tokenizer.vocab_size())
      refuse("tokens", "'tokens' must hold ids below {}; got {}", tokenizer.vocab_size(), token);
  return json_response({{"prompt", tokenizer.decode(what.tokens)}});
}

std::string_view media_type(std::string_view name) {
  constexpr auto kTypes = std::to_array<std::pair<std::string_view, std::string_view>>({
      {".html", "text/html; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"},
      {".svg", "image/svg+xml"},
      {".json", "application/json"},
      {".png", "image/png"},
  });
  for (const auto& [ending, type] : kTypes)
    if (name.ends_with(ending)) return type;
  return "application/octet-stream";
}

}  // namespace fovea::serve
