// Runs a syntax tree.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>
#include <string>

#include "fovea/text/jinja/syntax.h"

namespace fovea::jinja {

struct Rendering {
  std::string where;      // the template's name in errors
  NamedValues variables;  // later ones replace earlier ones
  std::tm now = {};       // for strftime_now
};

/// The text that the template writes. InputError and UnsupportedError name the line and column;
/// raise_exception() of the template is an InputError with its message.
std::string render(const Block& tree, const Rendering& rendering, Budget& budget);

}  // namespace fovea::jinja
