// String functions that methods and filters share, paid from the budget before they run.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fovea/text/jinja/value.h"

namespace fovea::jinja {

/// str.replace().
Value replace_text(const std::string& text, const std::string& from, const std::string& to,
                   int64_t most, Budget& budget);

/// str.format() with fields like {}, {0}, {name}, {name.attribute} and {0[key]}. Conversions and
/// format specifications are refused.
Value format_text(const std::string& pattern, const Arguments& arguments, Budget& budget);

}  // namespace fovea::jinja
