// Problem: a refusal in the shape of OpenAI's API, with its HTTP status.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fovea::serve {

using Json = nlohmann::ordered_json;

/// Thrown while a request is read, and the last event of a stream that failed.
struct Problem : std::exception {
  int status = 400;
  std::string message = {};
  std::string type = "invalid_request_error";
  std::string param = {};  ///< the field of the request; "" = none
  std::string code = {};   ///< a word for programs; "" = none
  std::string allow = {};  ///< of status 405: the header Allow
  int retry_after = 0;     ///< seconds, of status 503; 0 = none

  Problem() = default;
  Problem(int status_, std::string type_, std::string message_)
      : status(status_), message(std::move(message_)), type(std::move(type_)) {}
  const char* what() const noexcept override { return message.c_str(); }
  /// {"error": {"message", "type", "param", "code"}}
  Json to_json() const;
};

/// Status 400 about one field, or about the whole request where `param` is "".
template <class... Args>
[[noreturn]] void refuse(std::string_view param, fmt::format_string<Args...> message,
                         Args&&... args) {
  Problem problem(400, "invalid_request_error", fmt::format(message, std::forward<Args>(args)...));
  problem.param = param;
  throw problem;
}

/// A message of Fovea without its place: "[engine] expected ..." is "expected ...".
std::string without_place(std::string_view message);

/// The problem of an exception: a Problem itself, an Error of Fovea by its type (the place in
/// brackets is taken off), else status 500 without details.
Problem problem_of(const std::exception& error);

/// The time of a request (--request-timeout) is over: status 408.
Problem too_late();

/// The server is shutting down, or has no room: status 503 with Retry-After.
Problem overloaded(std::string message, int retry_after);

}  // namespace fovea::serve
