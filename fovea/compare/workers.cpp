// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/workers.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/compare/tasks.h"
#include "fovea/config/reader.h"
#include "fovea/runtime/worker_pool.h"
#include "fovea/train/stage_schedule.h"
#include "fovea/train/trainer.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr double kTellEvery = 0.5;  // seconds between two lines of a worker
constexpr size_t kNamedAtWork = 4;  // of the runs that train now, in a line of progress

std::string name_of(const PlannedRun& run) {
  return fmt::format("{}, seed {}", run.variant, run.seed);
}

/// What the worker of a run has told.
struct Told {
  double fraction = 0, loss = kNotANumber, rate = 0;
  std::string doing;  // beside training

  void hear(const Json& line) {
    for (const auto& [key, value] :
         {std::pair{"fraction", &fraction}, std::pair{"loss", &loss}, std::pair{"rate", &rate}}) {
      const auto told = line.find(key);  // null for a loss that is no number
      if (told != line.end() && told->is_number()) *value = told->get<double>();
    }
    doing = line.value("doing", doing);
  }
};

class SideBySide {
 public:
  SideBySide(std::span<const PlannedRun> runs, const CompareTasks& tasks, int64_t workers,
             const CompareCallbacks& callbacks, const RunEnded& ended)
      : runs_(runs),
        tasks_(tasks),
        callbacks_(callbacks),
        ended_(ended),
        deaths_(runs.size()),
        pool_(
            {.where = "compare",
             .job_word = "the run ",
             .command = callbacks.worker,
             .workers = static_cast<size_t>(workers),
             .life = WorkerPoolOptions::Life::one_job,
             .stop = callbacks.stop,
             .heard = [this](size_t job, const Json& line) { hear(job, line); },
             .finished = [this](size_t job,
                                const Json& line) { end(run_of_[job], line.value("failure", "")); },
             .died = [this](const WorkerDeath& death) { return keep_log(death); },
             .warning = callbacks.warning,
             .remedy = "finished runs stay: the same command continues, and --workers 1 trains "
                       "without workers"}) {}

  void train() {
    for (size_t n = 0; n < runs_.size(); ++n) {
      if (is_finished(runs_[n], tasks_)) {
        end(n, "");
        continue;
      }
      const Json job = {{"recipe", fields_to_json(runs_[n].recipe)},
                        {"tasks", fields_to_json(tasks_)}};
      pool_.add({name_of(runs_[n]), job.dump()});
      run_of_.push_back(n);
    }
    told_.resize(run_of_.size());
    while (pool_.busy()) {
      require<Interrupted>(callbacks_.stop == nullptr || !callbacks_.stop->load(), "compare",
                           "stopped with {} of {} runs done; the others are saved: the same "
                           "command continues",
                           done_, runs_.size());
      pool_.step();
      report();
    }
  }

 private:
  void hear(size_t job, const Json& line) {
    told_[job].hear(line);
    if (line.contains("warning") && callbacks_.warning)
      callbacks_.warning(
          fmt::format("{}: {}", pool_.name_of(job), line.at("warning").get<std::string>()));
  }

  /// Writes how the run's workers died into its folder; says where.
  std::string keep_log(const WorkerDeath& death) {
    const size_t run = run_of_[death.job];
    const Told& told = told_[death.job];
    std::vector<std::string>& deaths = deaths_[run];
    deaths.push_back(fmt::format(
        "worker {} (process {}) of '{}': {} after {:.1f} % of the run, loss {:.4f}\n"
        "its stderr:\n{}\n",
        death.count, death.process, name_of(runs_[run]), death.how, 100.0 * told.fraction,
        told.loss, death.errors.empty() ? "(nothing)" : death.errors));
    told_[death.job] = {};
    const std::filesystem::path log =
        std::filesystem::path(runs_[run].recipe.run_folder) / "worker.log";
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

  void report() const {
    const std::vector<size_t> jobs = pool_.at_work();
    if (!callbacks_.progress || jobs.empty()) return;
    double fraction = static_cast<double>(done_), rate = 0;
    std::vector<std::string> at_work;
    for (const size_t job : jobs) {
      const Told& told = told_[job];
      fraction += told.fraction;
      rate += told.rate;
      if (at_work.size() < kNamedAtWork)
        at_work.push_back(
            told.doing.empty()
                ? fmt::format("{} {:.0f} %", pool_.name_of(job), 100.0 * told.fraction)
                : fmt::format("{} {}", pool_.name_of(job), told.doing));
    }
    if (jobs.size() > at_work.size())
      at_work.push_back(fmt::format("{} more at work", jobs.size() - at_work.size()));
    callbacks_.progress({.label = fmt::format("{} of {} runs done; {}", done_, runs_.size(),
                                              fmt::join(at_work, "; ")),
                         .fraction = fraction / static_cast<double>(runs_.size()),
                         .loss = told_[jobs.front()].loss,
                         .tokens_per_second = rate > 0 ? rate : kNotANumber});
  }

  std::span<const PlannedRun> runs_;
  const CompareTasks& tasks_;
  const CompareCallbacks& callbacks_;
  const RunEnded& ended_;
  std::vector<std::vector<std::string>> deaths_;  // of a run's workers, for its log
  std::vector<size_t> run_of_;                    // by job
  std::vector<Told> told_;                        // by job
  size_t done_ = 0;
  WorkerPool pool_;  // the last one: it ends before what its callbacks use
};

}  // namespace

bool is_finished(const PlannedRun& run, const CompareTasks& tasks) {
  const StageSchedule last = stage_schedules(run.recipe).back();
  const auto saved = list_checkpoints(run.recipe.run_folder);
  if (last.steps == 0 || saved.empty() || saved.back().step < last.first_step + last.steps)
    return false;
  return count_task_logs(run.recipe.run_folder, saved.back().step) >= tasks.names.size();
}

void train_and_answer(
    const Recipe& recipe, const CompareTasks& tasks, const std::shared_ptr<const Corpus>& corpus,
    const TrainCallbacks& callbacks,
    const std::function<void(std::string_view task, int64_t done, int64_t total)>& answering) {
  Trainer trainer(recipe, callbacks, corpus);
  const TrainResult result = trainer.run();
  if (tasks.active())
    answer_tasks(tasks, trainer.model(), trainer.corpus().tokenizer(), result.steps,
                 recipe.run_folder, {.progress = answering, .stop = callbacks.stop});
}

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
    train_and_answer(recipe, tasks, nullptr, train, answering);
    say({{"finished", true}});
  } catch (const NumericalError& error) {
    say({{"finished", true}, {"failure", error.what()}});
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    tell(worker_error_line(error));
  }
}

}  // namespace fovea
