// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/problem.h"

namespace fovea::serve {
namespace {

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

Json Problem::to_json() const {
  return {{"error",
           {{"message", message},
            {"type", type},
            {"param", text_or_null(param)},
            {"code", text_or_null(code)}}}};
}

std::string without_place(std::string_view message) {
  const size_t end = message.starts_with('[') ? message.find("] ") : message.npos;
  return std::string(end == message.npos ? message : message.substr(end + 2));
}

Problem too_late() {
  return {408, "invalid_request_error", "the request took longer than --request-timeout allows"};
}

Problem overloaded(std::string message, int retry_after) {
  Problem problem(503, "overloaded_error", std::move(message));
  problem.retry_after = retry_after;
  return problem;
}

}  // namespace fovea::serve
