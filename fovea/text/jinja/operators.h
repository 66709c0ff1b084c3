// Python's arithmetic and comparisons.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "fovea/text/jinja/value.h"

namespace fovea::jinja {

/// left op right for + - * / // % **. Integers have 64 bits: a Fault where a result needs more.
Value arithmetic(std::string_view op, const Value& left, const Value& right, Budget& budget);
Value negative(const Value& value);
Value positive(const Value& value);
/// left op right for == != < <= > >= in, and "not in".
bool comparison(std::string_view op, const Value& left, const Value& right, Budget& budget);

}  // namespace fovea::jinja
