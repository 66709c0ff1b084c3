// Prompts of chat templates, for programs that compare them (check_chat_templates.py).
//
//   peer_prompts TEMPLATE CASES    CASES is a JSON list of variables by name, `messages` among them
//
// Prints a JSON list: {"prompt": ...}, or {"error": ...} for each case.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/text/chat_template.h"

namespace {

using Json = nlohmann::ordered_json;

Json result_of(const fovea::ChatTemplate& chat_template, const Json& variables, std::tm now) {
  try {
    fovea::ChatTemplateOptions options;
    options.variables = variables;
    options.now = now;
    return {{"prompt", chat_template.render({}, options)}};
  } catch (const fovea::Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    fovea::require<fovea::UsageError>(argc == 3, "peer_prompts", "expected TEMPLATE CASES");
    const fovea::ChatTemplate chat_template(fovea::read_file(argv[1]));
    // As in tests/golden/make_chat_cases.py: 26 July 2024, 14:05:09, a Friday.
    const std::tm now = {.tm_sec = 9,
                         .tm_min = 5,
                         .tm_hour = 14,
                         .tm_mday = 26,
                         .tm_mon = 6,
                         .tm_year = 124,
                         .tm_wday = 5,
                         .tm_yday = 207};
    Json results = Json::array();
    for (const Json& variables : Json::parse(fovea::read_file(argv[2])))
      results.push_back(result_of(chat_template, variables, now));
    std::cout << results.dump() << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
