// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/thread_waiting.h"

#include <unistd.h>

#include <cstdlib>

namespace fovea::cli {

void limit_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  // About 10 us: longer than the gap between two parallel regions of a step, shorter than a time
  // slice by far.
  if (::setenv("GOMP_SPINCOUNT", "3000", 1) == 0) ::execv("/proc/self/exe", argv);
}

}  // namespace fovea::cli
