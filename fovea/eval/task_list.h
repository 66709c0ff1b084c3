// The tasks that a user can name: those of recipes/tasks, which are compiled in, those made in
// code, and YAML files of the user's own.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fovea/eval/task.h"

namespace fovea {

/// All tasks that have a name, sorted by it.
std::vector<Task> known_tasks();

/// The task of that name, or that of the file where `name` ends in ".yaml". ConfigError with the
/// nearest name for an unknown one, and for a bad file.
Task find_task(const std::string& name);

/// File names and texts of recipes/tasks, generated into the build tree.
std::span<const std::pair<const char*, const char*>> task_texts();

}  // namespace fovea
