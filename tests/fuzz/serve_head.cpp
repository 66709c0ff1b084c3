// Fuzz target: any bytes as the head of a request give a request, or a refusal in OpenAI's shape;
// no header of an answer, and no line of the log, carries bytes that would end it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fovea/base/printable.h"
#include "fovea/serve/http_head.h"
#include "tests/serve/fake_backend.h"

namespace {

using namespace fovea::serve;

void require(bool holds) {
  if (!holds) __builtin_trap();
}

bool has_control(std::string_view text) {
  return std::ranges::any_of(text,
                             [](unsigned char c) { return (c < ' ' && c != '\t') || c == 0x7f; });
}

void check_answer(const HttpResponse& answer) {
  require(answer.status >= 200 && answer.status < 600);
  require(answer.body.empty() ? answer.status == 204 : Json::accept(answer.body));
  for (const auto& [name, value] : answer.headers) require(!has_control(name + value));
}

void check_head(const Routes& routes, const HttpRequest& request) {
  if (const auto refusal = routes.refuse_head(request)) check_answer(*refusal);
  for (const auto& [name, value] : routes.headers_for(request)) require(!has_control(name + value));
  require(!has_control(routes.name_of(request)));
  require(
      !has_control(fovea::printable_line(request.method) + fovea::printable_line(request.path())));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fovea::testing::FakeBackend backend;
  static const Routes open(backend, {.origins = {"*"}, .local = false});
  static const Routes guarded(backend, {.api_keys = {"secret"}, .origins = {"https://a.example"}});
  RequestParser parser;
  parser.header_limit(16 << 10);
  boost::system::error_code error;
  parser.put(boost::asio::buffer(data, size), error);
  if (error && error != boost::beast::http::error::need_more) {
    check_answer(problem_response(problem_of_reading(error)));
    return 0;
  }
  if (!parser.is_header_done()) return 0;
  const HttpRequest request = head_of(parser);
  check_head(open, request);
  check_head(guarded, request);
  return 0;
}
