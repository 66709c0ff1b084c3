// A comparison under a launcher: its processes share the runs through the run folders.
//
// Each process takes the next run that is neither finished nor locked. So nothing connects them but
// the file system, and the run of a process that died is taken by another one.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "fovea/compare/compare.h"

namespace fovea {

/// Trains runs until all are finished or have diverged, by this process or another one; their
/// models answer the tasks. Interrupted where callbacks.stop is set; errors as Trainer::run(), but
/// NumericalError is written down for failure_of().
void train_with_others(std::span<const PlannedRun> runs, const CompareTasks& tasks,
                       const std::shared_ptr<const Corpus>& corpus,
                       const CompareCallbacks& callbacks);

/// Why the run has diverged in this version of the program; none where it has not.
std::optional<std::string> failure_of(const PlannedRun& run);

/// Calls `work`, again where another process has locked what it needs.
void wait_for_lock(const std::atomic<bool>* stop, const std::function<void()>& work);

}  // namespace fovea
