// Tasks whose questions are made from a seed, at any length (spec 9.4 - 9.8).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fovea/eval/made/prose.h"
#include "fovea/eval/task.h"

namespace fovea {

/// All made tasks (docs/made-tasks.md). Where TaskInput::limit is 0, a task has kMadeQuestions
/// questions for each length. Question n has length n mod the number of lengths, so that a limit
/// cuts all alike. Where TaskInput::depths names any, the depths take turns after the lengths.
/// `items` throws ConfigError for a length that no question fits into, a number below 0, or depths
/// of a task that has none. It throws InputError where TaskInput::data lacks the task's files.
std::vector<Task> made_tasks();

inline constexpr int64_t kMadeQuestions = 100;
/// The tasks' own lengths.
inline constexpr int64_t kMadeLengths[] = {1024, 2048, 4096};

/// The text around hidden things: TaskInput::background; else the essays in text/paul_graham_essays
/// of TaskInput::data; else built_in_prose().
std::shared_ptr<const Prose> background_prose(const TaskInput& input);

}  // namespace fovea
