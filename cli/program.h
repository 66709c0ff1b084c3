// The whole `fovea` program as a function: programs that bring attention of their own call it after
// registering their stages (docs/adding-a-mechanism.md).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea::cli {

/// Parses the arguments of main(), runs the verb, reports errors on stderr. Returns the exit code:
/// 0 done, 1 failed while running, 2 wrong usage, recipe or input, 75 another rank has gone (start
/// again), 130 interrupted. Call it before the process starts threads: it may execute itself anew
/// to set their waiting.
int run_program(int argc, char** argv);

}  // namespace fovea::cli
