// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/worker_choice.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <set>

#include "fovea/base/error.h"
#include "fovea/report/format.h"
#include "fovea/runtime/machine.h"
#include "fovea/runtime/memory_limit.h"
#include "fovea/train/run_plan.h"

namespace fovea {
namespace {

constexpr int64_t kSmallModel = 10'000'000;  // parameters: a second thread helps larger ones more
constexpr double kShareOfMemory = 0.5;       // the system and its file cache need some, too

/// The largest needs of all runs. Seeds of a variant need the same.
struct Needs {
  int64_t parameters = 0;
  int64_t threads = 0;  // train.threads; 0 = not said
  double memory = 0;    // bytes of one run
  bool gpu = false;

  Needs(std::span<const PlannedRun> runs, int64_t vocabulary) {
    std::set<std::string> seen;
    for (const PlannedRun& run : runs) {
      if (!seen.insert(run.variant).second) continue;
      const RunPlan plan = plan_run(run.recipe, vocabulary);
      parameters = std::max(parameters, plan.parameters.total());
      threads = std::max(threads, run.recipe.train.threads);
      memory = std::max(memory, static_cast<double>(plan.memory.total()));
      const DeviceChoice device = run.recipe.train.device;
      gpu = gpu || device == DeviceChoice::cuda ||
            (device == DeviceChoice::automatic && choose_device(device).is_cuda());
    }
  }
};

WorkerChoice given_workers(int64_t workers, const Needs& needs, double memory) {
  const double all = static_cast<double>(workers) * needs.memory;
  require<MemoryError>(needs.gpu || memory <= 0 || all <= memory, "compare",
                       "expected workers that fit the memory of this machine; {} workers need {} "
                       "of {}; lower 'compare.workers', or let 'auto' choose",
                       workers, bytes_text(all), bytes_text(memory));
  return {.workers = workers,
          .threads = std::max<int64_t>(1, needs.threads),
          .reason = "compare.workers"};
}

}  // namespace

std::string WorkerChoice::sentence(int64_t runs) const {
  const std::string each = threads == 1 ? "one thread" : fmt::format("{} threads", threads);
  return workers > 1
             ? fmt::format("{} runs, {} at a time, {} each ({})", runs, workers, each, reason)
             : fmt::format("{} run{}, one after the other, {} ({})", runs, runs == 1 ? "" : "s",
                           each, reason);
}

WorkerChoice choose_workers(const CompareConfig& config, std::span<const PlannedRun> runs,
                            int64_t tokenizer_vocab) {
  const auto most = std::ssize(runs);
  const int64_t threads = at::get_num_threads();
  const int64_t given = std::min(config.workers_given(), most);  // 0 = auto
  const Needs needs(runs, tokenizer_vocab);
  const auto memory = static_cast<double>(memory_limit_bytes());
  if (given > 1) return given_workers(given, needs, memory);
  const auto in_turn = [&](std::string reason) {
    return WorkerChoice{.threads = needs.threads > 0 ? needs.threads : threads,
                        .reason = std::move(reason)};
  };
  if (given == 1) return in_turn(most == 1 ? "one run" : "compare.workers");
  if (most == 1) return in_turn("one run");
  if (threads == 1) return in_turn("the program has one thread");
  if (config.budget == BudgetKind::time) return in_turn("a budget of time");
  if (needs.gpu) return in_turn("they share a GPU");
  if (needs.threads > 1) return in_turn("train.threads");
  if (needs.parameters > kSmallModel)
    return in_turn(
        fmt::format("models of over {} parameters", count_text(static_cast<double>(kSmallModel))));
  int64_t workers = std::min<int64_t>(threads, most);
  if (memory > 0)
    workers = std::min(workers, static_cast<int64_t>(kShareOfMemory * memory / needs.memory));
  if (workers <= 1) return in_turn("two would take over half of the memory");
  const bool short_of_memory = workers < std::min<int64_t>(threads, most);
  return {.workers = workers,
          .threads = 1,
          .reason = short_of_memory ? "half of the memory holds so many" : "compare.workers: auto"};
}

}  // namespace fovea
