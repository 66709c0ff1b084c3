// How deep JSON is nested: copies and comparisons of parsed JSON recurse, so a file of brackets
// would overflow the stack.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "fovea/base/error.h"

namespace fovea {

/// Levels of JSON that are read; no file of a tokenizer, a model or a record has nearly as many.
inline constexpr int64_t kMostJsonLevels = 200;

/// Lists and objects inside one another, 0 for neither; any number for a text that is no JSON.
int64_t json_depth(std::string_view text);

/// E for a text from outside that is nested deeper than kMostJsonLevels.
template <class E>
void require_shallow_json(std::string_view text, std::string_view where) {
  require<E>(json_depth(text) <= kMostJsonLevels, where,
             "JSON nested deeper than {} levels; simplify it", kMostJsonLevels);
}

}  // namespace fovea
