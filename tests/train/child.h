// A training process that a test kills.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace fovea::testing {

/// What the child does: trains the recipe of `kill_recipe(root)` and, when `point` is passed for
/// the `count`-th time, kills itself with SIGKILL. Empty point: trains to the end.
int train_child(const std::vector<std::string>& arguments);

/// Runs the child and returns the signal that ended it, 0 for none.
int run_child(const std::string& root, const std::string& run, const std::string& point, int count);

}  // namespace fovea::testing
