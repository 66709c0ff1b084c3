// Builds the syntax tree of a template.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "fovea/text/jinja/syntax.h"

namespace fovea::jinja {

/// InputError for what is malformed, UnsupportedError for what Fovea does not run; both name the
/// line and column. `where` is the template's name in them.
Block parse(std::string_view source, const std::string& where);

}  // namespace fovea::jinja
