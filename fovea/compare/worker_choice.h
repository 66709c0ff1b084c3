// The number of runs of a comparison that train at a time.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "fovea/compare/compare.h"

namespace fovea {

struct WorkerChoice {
  int64_t workers = 1;  ///< runs at a time; 1 = one after the other, in this process
  int64_t threads = 1;  ///< of each
  std::string reason;   ///< why so many, in a few words

  /// "20 runs, 2 at a time, one thread each (compare.workers: auto)".
  std::string sentence(int64_t runs) const;
};

/// Follows `compare.workers`. `auto` is as many as this program has threads where all models are
/// small: on the CPU, at most 10 million parameters. It is less where so many would need more than
/// half of the machine's memory by plan_run(). It is 1 for a budget of time, which needs a quiet
/// machine, and for runs that ask for several threads (train.threads). MemoryError for a number
/// that cannot fit the machine.
WorkerChoice choose_workers(const CompareConfig& config, std::span<const PlannedRun> runs,
                            int64_t tokenizer_vocab);

}  // namespace fovea
