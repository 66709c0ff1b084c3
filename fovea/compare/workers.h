// Workers of a comparison: processes of the same program that train its runs side by side, one
// thread each.
//
// A small model gains little from a second thread, and loses most of its speed when another program
// holds one of the cores. A worker reads the recipe of its run and the tasks that its model answers
// as JSON on stdin. On stdout it tells how far it is, one JSON object a line.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/compare/compare.h"

namespace fovea {

/// The end of a run: `failure` is the reason of one that diverged, else "".
using RunEnded = std::function<void(size_t run, const std::string& failure)>;

/// Trains the runs that are not finished, `workers` at a time, each by callbacks.worker; its model
/// answers `tasks`, whose logs stay in the run folder. Calls `ended` for every run. A worker that
/// dies is reported with its run's name and started again once; its last words are in `worker.log`
/// of the run folder. IoError where it dies twice; an error that a worker throws is thrown here,
/// with the run's name; Interrupted where callbacks.stop is set. In all cases every worker has
/// ended.
void train_side_by_side(std::span<const PlannedRun> runs, const CompareTasks& tasks,
                        int64_t workers, const CompareCallbacks& callbacks, const RunEnded& ended);

/// Whether its folder holds the last step and a log of every task, so that nothing is left to do.
bool is_finished(const PlannedRun& run, const CompareTasks& tasks);

/// Trains a run, whose model then answers the tasks: as Trainer and answer_tasks().
void train_and_answer(
    const Recipe& recipe, const CompareTasks& tasks, const std::shared_ptr<const Corpus>& corpus,
    const TrainCallbacks& callbacks,
    const std::function<void(std::string_view task, int64_t done, int64_t total)>& answering = {});

/// The work of a worker process; `job` is what it read on stdin. Errors are told, but Interrupted
/// is thrown.
void run_worker(std::string_view job, const std::function<void(const std::string& line)>& tell,
                const std::atomic<bool>* stop);

}  // namespace fovea
