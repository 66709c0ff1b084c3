// How much of a task's prompts a sparse attention reads: a prompt that fits into the local window
// proves nothing about what is pruned.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "fovea/eval/task.h"
#include "fovea/eval/task_score.h"
#include "fovea/nn/transformer.h"

namespace fovea {

/// Counted in the first questions, each with its first choice, until 64 of them or 16,384 tokens
/// are read. Nothing for an attention that reads all pairs, for one whose pairs are not counted
/// (Performer), and for a task without questions. Questions longer than `context` (0 = the model's)
/// are counted in windows of so many tokens. `step` is called before each question; it may throw.
std::optional<TaskPairs> task_pairs(const Transformer& model, const Tokenizer& tokenizer,
                                    const Task& task, const TaskInput& input, int64_t context = 0,
                                    const std::function<void()>& step = {});

}  // namespace fovea
