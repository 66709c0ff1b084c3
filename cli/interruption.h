// How verbs answer Ctrl-C, SIGTERM and SIGHUP: at once, or after a step that must be saved.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/verbs.h"
#include "fovea/runtime/interrupt.h"

namespace fovea::cli {

/// For InterruptGuard, of verbs that save: says on stderr that the end comes after this step.
void say_that_it_stops();

/// Lets `guard` end the process with `text` a second after the signal, wherever the work is then.
/// For work whose files are whole at any moment.
void leave_within_a_second(InterruptGuard& guard, const Globals& globals, const std::string& text,
                           bool resumes = false);

}  // namespace fovea::cli
