// The program as a worker of `fovea compare`. No verb: only a comparison starts it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace fovea::cli {

/// The word after the program's name, which no help lists.
inline constexpr const char* kWorkerWord = "worker-of-compare";

/// Trains the run whose recipe is on stdin (compare/workers.h). `arguments`: the process id of the
/// parent, with which the worker ends.
void run_worker_process(const std::vector<std::string>& arguments);

}  // namespace fovea::cli
