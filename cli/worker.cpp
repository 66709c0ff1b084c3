// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/worker.h"

#include <unistd.h>

#include <cstdlib>

#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/compare/workers.h"
#include "fovea/runtime/child_process.h"
#include "fovea/runtime/interrupt.h"

namespace fovea::cli {

void run_worker_process(const std::vector<std::string>& arguments) {
  require<UsageError>(arguments.size() == 1, kWorkerWord,
                      "expected to be started by fovea compare");
  end_with_parent(std::atoi(arguments[0].c_str()));
  const InterruptGuard interrupt;
  const std::string recipe = read_descriptor(STDIN_FILENO, "stdin", kLargestText);
  run_worker(
      recipe, [](const std::string& line) { print(line); }, interrupt.flag());
}

}  // namespace fovea::cli
