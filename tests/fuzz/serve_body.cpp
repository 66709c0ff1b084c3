// Fuzz target: any bytes as the body of a request give a request, or a refusal in OpenAI's shape.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/completion_request.h"
#include "fovea/serve/http.h"
#include "fovea/serve/problem.h"
#include "fovea/serve/small_requests.h"

namespace {

template <class Read>
void read_or_refuse(const Read& read, std::string_view body) {
  try {
    read(body);
  } catch (const fovea::serve::Problem& problem) {
    // The refusal itself must be JSON, whatever stood in the body.
    const std::string answer = fovea::serve::problem_response(problem).body;
    if (problem.status != 400 || !fovea::serve::Json::accept(answer)) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fovea::serve;
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      read_or_refuse([](std::string_view b) { read_completion(b); }, body);
      break;
    case 1:
      read_or_refuse([](std::string_view b) { read_chat(b); }, body);
      break;
    case 2:
      read_or_refuse([](std::string_view b) { read_attention(b); }, body);
      break;
    case 3:
      read_or_refuse([](std::string_view b) { read_tokenize(b); }, body);
      break;
    default:
      read_or_refuse([](std::string_view b) { read_detokenize(b); }, body);
  }
  return 0;
}
