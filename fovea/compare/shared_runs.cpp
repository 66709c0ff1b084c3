// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/shared_runs.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/paths.h"
#include "fovea/compare/workers.h"
#include "fovea/runtime/machine.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kLookAgain{200};
constexpr const char* kFailure = "failure.json";

std::filesystem::path failure_file(const PlannedRun& run) {
  return std::filesystem::path(run.recipe.run_folder) / kFailure;
}

void pause(const std::atomic<bool>* stop) {
  require<Interrupted>(stop == nullptr || !stop->load(), "compare",
                       "stopped while other processes train; the same command continues");
  std::this_thread::sleep_for(kLookAgain);
}

class SharedRuns {
 public:
  SharedRuns(std::span<const PlannedRun> runs, const CompareTasks& tasks,
             const std::shared_ptr<const Corpus>& corpus, const CompareCallbacks& callbacks)
      : runs_(runs), tasks_(tasks), corpus_(corpus), callbacks_(callbacks), ended_(runs.size()) {}

  void train() {
    const auto [rank, ranks] = callbacks_.sharing;
    for (;;) {
      bool took = false;
      // Its own runs first, then those of others.
      for (const bool own : {true, false}) {
        for (size_t n = 0; n < runs_.size(); ++n)
          if ((static_cast<int64_t>(n) % ranks == rank) == own) took = take(n) || took;
      }
      if (done() == runs_.size()) return;
      if (!took) pause(callbacks_.stop);
    }
  }

 private:
  size_t done() const { return static_cast<size_t>(std::ranges::count(ended_, true)); }

  /// Whether this process has trained run n.
  bool take(size_t n) {
    const PlannedRun& run = runs_[n];
    ended_[n] = ended_[n] || is_finished(run, tasks_) || failure_of(run);
    if (ended_[n]) return false;
    const std::string label = fmt::format("{}, seed {}", run.variant, run.seed);
    TrainCallbacks train;
    train.stop = callbacks_.stop;
    train.warning = callbacks_.warning;
    train.step = [&](const TrainProgress& p) {
      if (callbacks_.progress)
        callbacks_.progress(
            {.label = fmt::format("{} of {} runs done; {}", done(), runs_.size(), label),
             .fraction =
                 (static_cast<double>(done()) + p.fraction) / static_cast<double>(runs_.size()),
             .loss = p.loss,
             .tokens_per_second = p.tokens_per_second});
    };
    try {
      train_and_answer(run.recipe, tasks_, corpus_, train);
      if (callbacks_.message) callbacks_.message(label + ": trained by this process");
    } catch (const LockedError&) {
      return false;
    } catch (const NumericalError& error) {
      write_file(failure_file(run),
                 Json{{"code_version", code_version()}, {"failure", error.what()}}.dump() + "\n");
    }
    ended_[n] = true;
    return true;
  }

  std::span<const PlannedRun> runs_;
  const CompareTasks& tasks_;
  const std::shared_ptr<const Corpus>& corpus_;
  const CompareCallbacks& callbacks_;
  std::vector<bool> ended_;
};

}  // namespace

void train_with_others(std::span<const PlannedRun> runs, const CompareTasks& tasks,
                       const std::shared_ptr<const Corpus>& corpus,
                       const CompareCallbacks& callbacks) {
  SharedRuns(runs, tasks, corpus, callbacks).train();
}

std::optional<std::string> failure_of(const PlannedRun& run) {
  const std::filesystem::path file = failure_file(run);
  if (!path_exists(file)) return std::nullopt;
  const Json json = Json::parse(read_file(file), nullptr, false);
  if (!json.is_object() || json.value("code_version", "") != code_version()) return std::nullopt;
  return json.value("failure", "");
}

void wait_for_lock(const std::atomic<bool>* stop, const std::function<void()>& work) {
  for (;;) {
    try {
      return work();
    } catch (const LockedError&) {
      pause(stop);
    }
  }
}

}  // namespace fovea
