// The routes: which request goes where, who may ask, and the headers of every answer.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fovea/serve/backend.h"
#include "fovea/serve/completion_exchange.h"
#include "fovea/serve/exchange.h"
#include "fovea/serve/metrics.h"
#include "fovea/serve/token_texts.h"

namespace fovea::serve {

struct RouteOptions {
  /// Keys of which a request must bear one (`Authorization: Bearer KEY`); none = no key is needed.
  std::vector<std::string> api_keys = {};
  /// Web pages of these origins may ask, "*" = of all; CORS headers are sent to them alone.
  std::vector<std::string> origins = {};
  /// Only this machine can connect, so a page's own origin is trusted for names of this machine
  /// alone: another name that leads here is a trick (DNS rebinding).
  bool local = true;
  std::chrono::milliseconds deadline{0};  ///< of a request; 0 = none
  /// Told why a request failed by the server's fault; from any thread.
  std::function<void(std::string_view)> log = [](std::string_view) {};
};

/// Equal texts, in a time that depends on the length of `given` alone.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

class Routes {
 public:
  /// The backend must outlive this.
  Routes(Backend& backend, RouteOptions options);

  using Answer = std::variant<HttpResponse, std::unique_ptr<Exchange>>;

  /// The refusal of a request by its head alone: an unknown route, a wrong method, a missing key, a
  /// strange page. Nothing where its body is worth reading.
  std::optional<HttpResponse> refuse_head(const HttpRequest& request) const;
  /// Whether answer() is quick, so that it may run on the thread of all connections.
  bool is_quick(const HttpRequest& request) const;
  /// Answers, or begins to. Never throws. Thread-safe.
  Answer answer(const HttpRequest& request, const HttpStatistics& http, Wake wake) const;
  /// Headers that every response to this request has: of CORS and of security.
  std::vector<std::pair<std::string, std::string>> headers_for(const HttpRequest& request) const;
  /// problem_of(), which the log learns where it is the server's fault.
  Problem report(const HttpRequest& request, const std::exception& error) const;
  /// The route's name for metrics and log: a known path, or "other".
  std::string name_of(const HttpRequest& request) const;
  void set_draining() { draining_ = true; }

 private:
  struct Route;
  static std::span<const Route> table();
  const Route* find(const HttpRequest& request) const;
  void check_origin(const HttpRequest& request) const;
  void check_key(const HttpRequest& request) const;
  bool is_allowed_origin(std::string_view origin) const;

  Answer page(const HttpRequest& request) const;
  Answer health() const;
  Answer models() const;
  Answer model(std::string_view name) const;
  Answer tokenize(const HttpRequest& request) const;
  Answer detokenize(const HttpRequest& request) const;

  Backend& backend_;
  RouteOptions options_;
  TokenTexts texts_;
  ExchangeContext context_;
  std::time_t started_;
  std::atomic<bool> draining_ = false;
};

}  // namespace fovea::serve
