// Tasks whose questions are made, not read: any length, from a seed (spec 9.4 - 9.8).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/eval/task.h"

namespace fovea {

/// All of them, with the data that they take from TaskInput::data.
std::vector<Task> made_tasks();

}  // namespace fovea
