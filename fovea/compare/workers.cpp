// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/workers.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <deque>
#include <list>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/checkpoint/model_file.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/compare/tasks.h"
#include "fovea/config/reader.h"
#include "fovea/runtime/child_process.h"
#include "fovea/train/stage_schedule.h"
#include "fovea/train/trainer.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// A worker saves a small model in milliseconds; who asks to stop waits at most 2 s.
constexpr std::chrono::milliseconds kStopWithin{1500};
constexpr int kLookEveryMs = 100;
constexpr double kTellEvery = 0.5;  // seconds between two lines of a worker
constexpr size_t kNamedAtWork = 4;  // of the runs that train now, in a line of progress

/// Whether its folder holds the last step and a log of every task, so that a worker has nothing
/// left to do.
bool is_finished(const PlannedRun& run, const CompareTasks& tasks) {
  const StageSchedule last = stage_schedules(run.recipe).back();
  const auto saved = list_checkpoints(run.recipe.run_folder);
  if (last.steps == 0 || saved.empty() || saved.back().step < last.first_step + last.steps)
    return false;
  return count_task_logs(run.recipe.run_folder, saved.back().step) >= tasks.names.size();
}

std::string name_of(const PlannedRun& run) {
  return fmt::format("{}, seed {}", run.variant, run.seed);
}

/// Throws the error that a worker has told.
[[noreturn]] void throw_again(const std::string& kind, const std::string& message) {
  using Thrower = void (*)(const std::string&);
  static constexpr std::pair<std::string_view, Thrower> kThrowers[] = {
      {"UsageError", [](const std::string& m) { throw UsageError(m); }},
      {"ConfigError", [](const std::string& m) { throw ConfigError(m); }},
      {"InputError", [](const std::string& m) { throw InputError(m); }},
      {"ShapeError", [](const std::string& m) { throw ShapeError(m); }},
      {"UnsupportedError", [](const std::string& m) { throw UnsupportedError(m); }},
      {"CheckpointError", [](const std::string& m) { throw CheckpointError(m); }},
      {"LockedError", [](const std::string& m) { throw LockedError(m); }},
      {"IoError", [](const std::string& m) { throw IoError(m); }},
      {"MemoryError", [](const std::string& m) { throw MemoryError(m); }}};
  for (const auto& [name, thrower] : kThrowers)
    if (name == kind) thrower(message);
  throw Error(message);
}

struct Worker {
  size_t run = 0;
  ChildProcess process;
  double fraction = 0, loss = kNotANumber, rate = 0;
  bool finished = false;
  std::string doing;  // beside training
  std::string failure;
  std::string error, kind;  // thrown by it

  void hear(std::string_view line, const CompareCallbacks& callbacks, const std::string& name) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) return;  // another library's line
    for (const auto& [key, value] :
         {std::pair{"fraction", &fraction}, std::pair{"loss", &loss}, std::pair{"rate", &rate}}) {
      const auto told = json.find(key);  // null for a loss that is no number
      if (told != json.end() && told->is_number()) *value = told->get<double>();
    }
    finished = json.value("finished", finished);
    doing = json.value("doing", doing);
    failure = json.value("failure", failure);
    error = json.value("error", error);
    kind = json.value("kind", kind);
    if (json.contains("warning") && callbacks.warning)
      callbacks.warning(fmt::format("{}: {}", name, json.at("warning").get<std::string>()));
  }
};

class SideBySide {
 public:
  SideBySide(std::span<const PlannedRun> runs, const CompareTasks& tasks, int64_t workers,
             const CompareCallbacks& callbacks, const RunEnded& ended)
      : runs_(runs),
        tasks_(tasks),
        most_(static_cast<size_t>(workers)),
        command_(callbacks.worker),
        callbacks_(callbacks),
        ended_(ended),
        deaths_(runs.size()) {
    command_.push_back(std::to_string(::getpid()));
  }

  void train() {
    for (size_t n = 0; n < runs_.size(); ++n) {
      if (is_finished(runs_[n], tasks_)) {
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
  bool stopping() const { return callbacks_.stop != nullptr && callbacks_.stop->load(); }

  void step() {
    require<Interrupted>(!stopping(), "compare",
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
    const Json job = {{"recipe", fields_to_json(runs_[n].recipe)},
                      {"tasks", fields_to_json(tasks_)}};
    workers_.push_back({.run = n, .process = ChildProcess(command_, job.dump())});
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
    const std::string name = name_of(runs_[worker.run]);
    const pid_t process = worker.process.id();
    std::string how = worker.process.wait();
    if (stopping()) return;  // who stops this process may have stopped the worker, too
    if (!worker.error.empty())
      throw_again(worker.kind, fmt::format("[compare] in the run '{}': {}", name, worker.error));
    if (how.empty() && worker.finished) return end(worker.run, worker.failure);
    if (how.empty()) how = "it stopped before its end";
    const std::string log = keep_log(worker, process, how);
    require<IoError>(deaths_[worker.run].size() < 2, "compare",
                     "the worker of '{}' died twice ({}); {}; finished runs stay: the same command "
                     "continues, and --workers 1 trains without workers",
                     name, how, log);
    if (callbacks_.warning)
      callbacks_.warning(
          fmt::format("the worker of '{}' died ({}); it is started again; {}", name, how, log));
    waiting_.push_front(worker.run);
  }

  /// Writes how the run's workers died into its folder; says where.
  std::string keep_log(const Worker& worker, pid_t process, const std::string& how) {
    std::vector<std::string>& deaths = deaths_[worker.run];
    const std::string& errors = worker.process.errors();
    deaths.push_back(
        fmt::format("worker {} (process {}) of '{}': {} after {:.1f} % of the run, loss {:.4f}\n"
                    "its stderr:\n{}\n",
                    deaths.size() + 1, process, name_of(runs_[worker.run]), how,
                    100.0 * worker.fraction, worker.loss, errors.empty() ? "(nothing)" : errors));
    const std::filesystem::path log =
        std::filesystem::path(runs_[worker.run].recipe.run_folder) / "worker.log";
    try {
      make_folders(log.parent_path());
      write_file(log, fmt::format("{}", fmt::join(deaths, "\n")));
    } catch (const IoError& error) {
      return fmt::format("its log cannot be written: {}", error.what());
    }
    return fmt::format("its log is '{}'", log.string());
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
      if (at_work.size() < kNamedAtWork)
        at_work.push_back(
            worker.doing.empty()
                ? fmt::format("{} {:.0f} %", name_of(runs_[worker.run]), 100.0 * worker.fraction)
                : fmt::format("{} {}", name_of(runs_[worker.run]), worker.doing));
    }
    if (workers_.size() > at_work.size())
      at_work.push_back(fmt::format("{} more at work", workers_.size() - at_work.size()));
    callbacks_.progress({.label = fmt::format("{} of {} runs done; {}", done_, runs_.size(),
                                              fmt::join(at_work, "; ")),
                         .fraction = fraction / static_cast<double>(runs_.size()),
                         .loss = workers_.front().loss,
                         .tokens_per_second = rate > 0 ? rate : kNotANumber});
  }

  std::span<const PlannedRun> runs_;
  const CompareTasks& tasks_;
  size_t most_;
  std::vector<std::string> command_;
  const CompareCallbacks& callbacks_;
  const RunEnded& ended_;
  std::vector<std::vector<std::string>> deaths_;  // of a run's workers, for its log
  std::deque<size_t> waiting_;
  std::list<Worker> workers_;
  size_t done_ = 0;
};

}  // namespace

void train_side_by_side(std::span<const PlannedRun> runs, const CompareTasks& tasks,
                        int64_t workers, const CompareCallbacks& callbacks, const RunEnded& ended) {
  SideBySide(runs, tasks, workers, callbacks, ended).train();
}

void run_worker(std::string_view job, const std::function<void(const std::string& line)>& tell,
                const std::atomic<bool>* stop) {
  Recipe recipe;
  CompareTasks tasks;
  const ConfigNode node = parse_json(job, "the job of a worker");
  read_fields(*node.find("recipe"), recipe);
  read_fields(*node.find("tasks"), tasks);
  const auto say = [&](const Json& json) { tell(json.dump() + "\n"); };
  auto last = Clock::now();
  const auto now_and_then = [&](const Json& json) {
    const auto now = Clock::now();
    if (std::chrono::duration<double>(now - last).count() < kTellEvery) return;
    last = now;
    say(json);
  };
  TrainCallbacks train;
  train.stop = stop;
  train.message = [](std::string_view) {};
  train.warning = [&](std::string_view warning) { say({{"warning", warning}}); };
  train.step = [&](const TrainProgress& p) {
    now_and_then({{"fraction", p.fraction}, {"loss", p.loss}, {"rate", p.tokens_per_second}});
  };
  const auto answering = [&](std::string_view task, int64_t done, int64_t total) {
    now_and_then({{"fraction", 1.0}, {"doing", fmt::format("{} {} of {}", task, done, total)}});
  };
  try {
    Trainer trainer(recipe, train);
    const TrainResult result = trainer.run();
    if (tasks.active())
      answer_tasks(tasks, trainer.model(), *open_named_tokenizer(recipe.tokenizer), result.steps,
                   recipe.run_folder, {.progress = answering, .stop = stop});
    say({{"finished", true}});
  } catch (const NumericalError& error) {
    say({{"finished", true}, {"failure", error.what()}});
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    say({{"error", error.what()}, {"kind", error.kind()}});
  }
}

}  // namespace fovea
