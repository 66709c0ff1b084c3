// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/json_depth.h"

#include <algorithm>

namespace fovea {
namespace {

/// The place behind the text in quotes that begins at `at`.
size_t behind_quoted(std::string_view text, size_t at) {
  for (++at; at < text.size(); ++at) {
    at = text.find_first_of("\"\\", at);
    if (at == text.npos) return text.size();
    if (text[at] == '"') return at + 1;
    ++at;  // what follows a backslash
  }
  return text.size();
}

}  // namespace

int64_t json_depth(std::string_view text) {
  int64_t depth = 0, deepest = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"') {
      at = behind_quoted(text, at);
      continue;
    }
    if (c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ']' || c == '}') --depth;
    ++at;
  }
  return deepest;
}

}  // namespace fovea
