// The tasks of a comparison: every finished run answers them, and its checkpoints too where asked.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "fovea/compare/config.h"
#include "fovea/nn/transformer.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

/// ConfigError and InputError for tasks that cannot be asked: before anything is trained.
void check_tasks(const CompareTasks& tasks, const Tokenizer& tokenizer);

struct TaskCallbacks {
  std::function<void(std::string_view task, int64_t done, int64_t total)> progress;
  const std::atomic<bool>* stop = nullptr;
};

/// Tasks of which the run has a log, whole or not, for its model after `step` steps.
size_t count_task_logs(const std::filesystem::path& run_folder, int64_t step);

/// The answers of a run whose model after `step` steps is `model`. Logs stand in
/// `run_folder`/results/STEP/; what they hold is not asked again. As run_task().
std::vector<TaskPoint> answer_tasks(const CompareTasks& tasks, const Transformer& model,
                                    const Tokenizer& tokenizer, int64_t step,
                                    const std::filesystem::path& run_folder,
                                    const TaskCallbacks& callbacks);

}  // namespace fovea
