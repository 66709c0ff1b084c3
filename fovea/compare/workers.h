// Workers of a comparison: processes of the same program that train its runs side by side, one
// thread each.
//
// A small model gains little from a second thread, and loses most of its speed when another program
// holds one of the cores. A worker reads the recipe of its run as JSON on stdin. On stdout it tells
// how far it is, one JSON object a line.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/compare/compare.h"

namespace fovea {

/// `compare.workers`; `auto` is as many as there are threads where all models are small. Small is a
/// model on the CPU of at most 10 million parameters, if as many together take at most half of the
/// machine's memory. `auto` is 1 for a budget of time, which needs a quiet machine, and where a
/// recipe sets `train.threads`.
int64_t choose_workers(const CompareConfig& config, std::span<const PlannedRun> runs,
                       int64_t tokenizer_vocab);

/// The end of a run: `failure` is the reason of one that diverged, else "".
using RunEnded = std::function<void(size_t run, const std::string& failure)>;

/// Trains the runs that are not finished, `workers` at a time, each by `command`; calls `ended` for
/// every run. A worker that dies is reported with its run's name and started again once. IoError
/// where it dies twice; Interrupted where callbacks.stop is set: all workers have ended then.
void train_side_by_side(std::span<const PlannedRun> runs, int64_t workers,
                        const std::vector<std::string>& command, const CompareCallbacks& callbacks,
                        const RunEnded& ended);

/// The work of a worker process. Errors of Trainer, but NumericalError, which it tells.
void run_worker(std::string_view recipe, const std::function<void(const std::string& line)>& tell,
                const std::atomic<bool>* stop);

}  // namespace fovea
