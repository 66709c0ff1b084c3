// Workers of `fovea eval --tasks`: how many, and the program as one of them.
//
// A worker is this program with the arguments of its parent, so that both open the same model in
// the same way.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "fovea/checkpoint/model_folder.h"

namespace fovea::cli {

/// The word after the program's name, which no help lists. It stands before the number of workers,
/// the arguments of `fovea eval`, and the parent's process id.
inline constexpr const char* kEvalWorkerWord = "worker-of-eval";

/// Makes this process a worker of one thread, which ends with its parent, and shortens the
/// arguments to those of the verb. Returns the number of workers.
int64_t become_eval_worker(int& argc, char**& argv);

/// The number of processes that `--workers` asks for: 1 = none beside this one. Call it with the
/// model in memory. UsageError.
int64_t choose_eval_workers(const std::string& workers, at::Device device);

/// The command of a worker, without the parent's process id.
std::vector<std::string> eval_worker_command(int64_t workers, const Globals& globals);

/// Answers the parts that come on stdin, until it ends.
void answer_task_parts(const LoadedModel& loaded, int64_t workers);

}  // namespace fovea::cli
