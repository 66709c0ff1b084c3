// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/workers.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <deque>
#include <list>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/config/reader.h"
#include "fovea/runtime/child_process.h"
#include "fovea/runtime/machine.h"
#include "fovea/runtime/memory_limit.h"
#include "fovea/train/run_plan.h"
#include "fovea/train/stage_schedule.h"
#include "fovea/train/trainer.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int64_t kSmallModel = 10'000'000;  // parameters
constexpr double kShareOfMemory = 0.5;
// A worker saves a small model in milliseconds; who asks to stop waits at most 2 s.
constexpr std::chrono::milliseconds kStopWithin{1500};
constexpr int kLookEveryMs = 100;
constexpr double kTellEvery = 0.5;  // seconds between two lines of a worker

bool is_small(const PlannedRun& run, int64_t workers, int64_t vocab) {
  if (choose_device(run.recipe.train.device).is_cuda()) return false;
  const RunPlan plan = plan_run(run.recipe, vocab);
  return plan.parameters.total() <= kSmallModel &&
         static_cast<double>(plan.memory.total() * workers) <=
             kShareOfMemory * static_cast<double>(memory_limit_bytes());
}

/// Whether its folder holds the last step, so that a Trainer has nothing left to do.
bool is_finished(const PlannedRun& run) {
  const StageSchedule last = stage_schedules(run.recipe).back();
  const auto saved = list_checkpoints(run.recipe.run_folder);
  return last.steps > 0 && !saved.empty() && saved.back().step >= last.first_step + last.steps;
}

std::string name_of(const PlannedRun& run) {
  return fmt::format("{}, seed {}", run.variant, run.seed);
}

struct Worker {
  size_t run = 0;
  ChildProcess process;
  double fraction = 0, loss = kNotANumber, rate = 0;
  bool finished = false;
  std::string failure;

  void hear(std::string_view line, const CompareCallbacks& callbacks, const std::string& name) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) return;  // another library's line
    for (const auto& [key, value] :
         {std::pair{"fraction", &fraction}, std::pair{"loss", &loss}, std::pair{"rate", &rate}}) {
      const auto told = json.find(key);  // null for a loss that is no number
      if (told != json.end() && told->is_number()) *value = told->get<double>();
    }
    finished = json.value("finished", finished);
    failure = json.value("failure", failure);
    if (json.contains("warning") && callbacks.warning)
      callbacks.warning(fmt::format("{}: {}", name, json.at("warning").get<std::string>()));
  }
};

class SideBySide {
 public:
  SideBySide(std::span<const PlannedRun> runs, int64_t workers,
             const std::vector<std::string>& command, const CompareCallbacks& callbacks,
             const RunEnded& ended)
      : runs_(runs),
        most_(static_cast<size_t>(workers)),
        command_(command),
        callbacks_(callbacks),
        ended_(ended),
        deaths_(runs.size(), 0) {
    command_.push_back(std::to_string(::getpid()));
  }

  void train() {
    for (size_t n = 0; n < runs_.size(); ++n) {
      if (is_finished(runs_[n])) {
        end(n, "");
      } else {
        waiting_.push_back(n);
      }
    }
    try {
      while (!waiting_.empty() || !workers_.empty()) step();
    } catch (...) {
      stop_all();
      throw;
    }
  }

 private:
  void step() {
    require<Interrupted>(callbacks_.stop == nullptr || !callbacks_.stop->load(), "compare",
                         "stopped with {} of {} runs done; the others are saved: the same command "
                         "continues",
                         done_, runs_.size());
    while (workers_.size() < most_ && !waiting_.empty()) {
      start(waiting_.front());
      waiting_.pop_front();
    }
    wait(kLookEveryMs);
    for (auto worker = workers_.begin(); worker != workers_.end();) {
      if (read(*worker)) {
        ++worker;
      } else {
        Worker over = std::move(*worker);
        worker = workers_.erase(worker);
        leave(over);
      }
    }
    report();
  }

  void start(size_t n) {
    workers_.push_back(
        {.run = n, .process = ChildProcess(command_, fields_to_json(runs_[n].recipe).dump())});
  }

  bool read(Worker& worker) {
    return worker.process.read(
        [&](std::string_view line) { worker.hear(line, callbacks_, name_of(runs_[worker.run])); });
  }

  void wait(int milliseconds) {
    std::vector<ChildProcess*> processes;
    for (Worker& worker : workers_) processes.push_back(&worker.process);
    ChildProcess::wait_for_any(processes, milliseconds);
  }

  /// Of a worker whose streams are closed.
  void leave(Worker& worker) {
    std::string how = worker.process.wait();
    if (how.empty() && worker.finished) return end(worker.run, worker.failure);
    if (how.empty()) how = "it stopped before its end";
    const std::string name = name_of(runs_[worker.run]);
    require<IoError>(++deaths_[worker.run] < 2, "compare",
                     "the worker of '{}' died twice ({}); finished runs stay: the same command "
                     "continues, and 'compare.workers=1' trains without workers",
                     name, how);
    if (callbacks_.warning)
      callbacks_.warning(
          fmt::format("the worker of '{}' died ({}); it is started again", name, how));
    waiting_.push_front(worker.run);
  }

  void end(size_t n, const std::string& failure) {
    ++done_;
    ended_(n, failure);
  }

  void stop_all() {
    for (const Worker& worker : workers_) worker.process.signal(SIGTERM);
    const auto deadline = Clock::now() + kStopWithin;
    while (!workers_.empty() && Clock::now() < deadline) {
      wait(kLookEveryMs);
      workers_.remove_if([&](Worker& worker) {
        if (read(worker)) return false;
        worker.process.wait();
        return true;
      });
    }
    workers_.clear();  // ends those that are left: they go on from their newest checkpoint
  }

  void report() const {
    if (!callbacks_.progress || workers_.empty()) return;
    double fraction = static_cast<double>(done_), rate = 0;
    std::vector<std::string> at_work;
    for (const Worker& worker : workers_) {
      fraction += worker.fraction;
      rate += worker.rate;
      at_work.push_back(
          fmt::format("{} {:.0f} %", name_of(runs_[worker.run]), 100.0 * worker.fraction));
    }
    callbacks_.progress({.label = fmt::format("{} of {} runs done; {}", done_, runs_.size(),
                                              fmt::join(at_work, "; ")),
                         .fraction = fraction / static_cast<double>(runs_.size()),
                         .loss = workers_.front().loss,
                         .tokens_per_second = rate});
  }

  std::span<const PlannedRun> runs_;
  size_t most_;
  std::vector<std::string> command_;
  const CompareCallbacks& callbacks_;
  const RunEnded& ended_;
  std::vector<int> deaths_;  // of a run's workers
  std::deque<size_t> waiting_;
  std::list<Worker> workers_;
  size_t done_ = 0;
};

}  // namespace

int64_t choose_workers(const CompareConfig& config, std::span<const PlannedRun> runs,
                       int64_t tokenizer_vocab) {
  const auto most = static_cast<int64_t>(runs.size());
  if (const int64_t given = config.workers_given(); given > 0) return std::min(given, most);
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), most);
  if (threads <= 1 || config.budget == BudgetKind::time) return 1;
  const bool all_small = std::ranges::all_of(runs, [&](const PlannedRun& run) {
    return run.recipe.train.threads == 0 && is_small(run, threads, tokenizer_vocab);
  });
  return all_small ? threads : 1;
}

void train_side_by_side(std::span<const PlannedRun> runs, int64_t workers,
                        const std::vector<std::string>& command, const CompareCallbacks& callbacks,
                        const RunEnded& ended) {
  SideBySide(runs, workers, command, callbacks, ended).train();
}

void run_worker(std::string_view text, const std::function<void(const std::string& line)>& tell,
                const std::atomic<bool>* stop) {
  Recipe recipe;
  read_fields(parse_json(text, "the recipe of a worker"), recipe);
  const auto say = [&](const Json& json) { tell(json.dump() + "\n"); };
  TrainCallbacks callbacks;
  callbacks.stop = stop;
  callbacks.message = [](std::string_view) {};
  callbacks.warning = [&](std::string_view warning) { say({{"warning", warning}}); };
  auto last = Clock::now();
  callbacks.step = [&](const TrainProgress& p) {
    const auto now = Clock::now();
    if (std::chrono::duration<double>(now - last).count() < kTellEvery) return;
    last = now;
    say({{"fraction", p.fraction}, {"loss", p.loss}, {"rate", p.tokens_per_second}});
  };
  Json end = {{"finished", true}};
  try {
    Trainer(recipe, callbacks).run();
  } catch (const NumericalError& error) {
    end["failure"] = error.what();
  }
  say(end);
}

}  // namespace fovea
