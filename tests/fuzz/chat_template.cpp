// Fuzz target: any bytes as a chat template render within their limits, or end in an error of ours.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/chat_template.h"

#include <cstdint>

#include "fovea/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<fovea::ChatMessage> messages = {
      {"system", "Be brief."}, {"user", " Hi \xFF"}, {"assistant", "<think>\nx\n</think>\nyo"}};
  try {
    const fovea::ChatTemplate chat(std::string_view(reinterpret_cast<const char*>(data), size));
    fovea::ChatTemplateOptions options;
    options.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    options.variables = {{"s", "naïve"}, {"n", 7}, {"l", {3, 1, 2}}, {"d", {{"b", 1}, {"a", {}}}}};
    options.now = std::tm{.tm_mday = 1, .tm_year = 100};
    options.max_steps = 50'000;
    options.max_bytes = 1 << 22;
    if (chat.render(messages, options).size() > (1 << 22)) __builtin_trap();
  } catch (const fovea::Error&) {
  }
  return 0;
}
