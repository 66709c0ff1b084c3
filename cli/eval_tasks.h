// fovea eval --tasks: a model answers the questions of tasks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/runtime/communicator.h"

namespace fovea::cli {

struct EvalTaskOptions {
  std::vector<std::string> tasks;
  std::string data, out, against, background, workers = "1";
  int64_t limit = 0, shots = -1, seed = 1234, context = 0;
  std::vector<int64_t> lengths;
  std::vector<double> depths;
};

void add_eval_task_options(Command& verb, EvalTaskOptions& options);

/// Asks, shows progress, prints the result. `model` is its name as the user gave it. Ranks other
/// than the first answer its questions.
void run_eval_tasks(const EvalTaskOptions& options, const Globals& globals,
                    const LoadedModel& loaded, const std::string& model, Communicator& ranks);

/// Names and titles of the known tasks, for --help.
std::string known_tasks_help();

}  // namespace fovea::cli
