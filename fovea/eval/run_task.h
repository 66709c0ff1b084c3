// Runs a task: asks a model its questions, logs every answer, and scores them (spec 9.1, 9.2).
//
// The log holds a line a question. A run that was killed goes on from it: what is answered is not
// asked again.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "fovea/eval/task.h"
#include "fovea/eval/task_score.h"
#include "fovea/eval/task_workers.h"
#include "fovea/nn/transformer.h"

namespace fovea {

struct TaskRunOptions {
  int64_t context = 0;           ///< inputs at most; 0 = the model's trained context
  int64_t tokens_a_pass = 2048;  ///< inputs computed together
  std::filesystem::path log;     ///< of this task, "results/hellaswag.jsonl"; empty = none
  std::string model;             ///< its name in the log
  /// Questions answered and all of them; it may throw, and the log then holds what is answered.
  std::function<void(int64_t done, int64_t total)> progress;
  const std::atomic<bool>* interrupt = nullptr;  ///< ends the run with Interrupted
  TaskWorkers* workers = nullptr;  ///< compute the answers; nullptr: this process does
};

/// With workers, questions are answered in the order in which they finish; the log is ordered at
/// its end. InputError for data that cannot be used and for a log of another model, task or
/// setting; Interrupted; NumericalError as LikelihoodEngine.
TaskScore run_task(const Transformer& model, const Tokenizer& tokenizer, const Task& task,
                   const TaskInput& input, const TaskRunOptions& options = {});

/// 16 hex digits of a model's parameters: of names, shapes and a sample of the numbers. Two models
/// that differ in training differ in it.
std::string model_fingerprint(const Transformer& model);

}  // namespace fovea
