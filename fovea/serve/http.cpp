// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/http.h"

namespace fovea::serve {

std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpResponse json_response(const Json& json, int status) {
  return {.status = status, .body = json_text(json)};
}

HttpResponse problem_response(const Problem& problem) {
  HttpResponse response = json_response(problem.to_json(), problem.status);
  if (!problem.allow.empty()) response.headers.emplace_back("Allow", problem.allow);
  if (problem.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (problem.retry_after > 0)
    response.headers.emplace_back("Retry-After", std::to_string(problem.retry_after));
  return response;
}

std::string event_text(const Json& json) { return "data: " + json_text(json) + "\n\n"; }

std::string error_event_text(const Problem& problem) {
  return "event: error\n" + event_text(problem.to_json());
}

}  // namespace fovea::serve
