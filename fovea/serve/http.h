// Requests and responses of HTTP as the routes see them: no library's types.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fovea/serve/problem.h"

namespace fovea::serve {

/// The headers that routes look at; "" = absent.
struct HttpRequest {
  std::string method = {}, target = {}, host = {}, origin = {}, authorization = {};
  std::string body = {};

  /// The target without its query.
  std::string_view path() const {
    return std::string_view(target).substr(0, target.find_first_of("?#"));
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
};

/// JSON on one line; bytes that are no UTF-8 become U+FFFD.
std::string json_text(const Json& json);
HttpResponse json_response(const Json& json, int status = 200);
HttpResponse problem_response(const Problem& problem);

/// An event of a stream: "data: {...}\n\n".
std::string event_text(const Json& json);
/// The event `error`, which ends a stream.
std::string error_event_text(const Problem& problem);

}  // namespace fovea::serve
