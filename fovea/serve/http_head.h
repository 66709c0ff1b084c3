// The head of a request from Boost.Beast's parser, and the answer to bytes that are none. For the
// server and the fuzz target of heads: they alone include Beast.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "fovea/serve/http.h"

namespace fovea::serve {

using RequestParser = boost::beast::http::request_parser<boost::beast::http::string_body>;

/// The headers that routes look at; the body stays in the parser.
inline HttpRequest head_of(const RequestParser& parser) {
  namespace http = boost::beast::http;
  const auto& from = parser.get();
  const auto header = [&](http::field field) { return std::string(from[field]); };
  return {.method = std::string(from.method_string()),
          .target = std::string(from.target()),
          .host = header(http::field::host),
          .origin = header(http::field::origin),
          .authorization = header(http::field::authorization)};
}

/// The answer to bytes that are no request.
inline Problem problem_of_reading(const boost::system::error_code& error) {
  namespace http = boost::beast::http;
  const auto with = [](int status, std::string message) {
    return Problem(status, "invalid_request_error", std::move(message));
  };
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return with(431, "the header of the request is too large");
  if (error == http::error::body_limit) return with(413, "the body of the request is too large");
  return with(400, fmt::format("the request is no HTTP: {}", error.message()));
}

}  // namespace fovea::serve
