// Tells "not enough memory" from other failures, whichever library reports it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace fovea {

/// Inside a catch block: the exception's words about missing memory, with the size where it is
/// known ("12.3 GB were asked for"); nothing where it is about something else.
std::optional<std::string> memory_shortage();

}  // namespace fovea
