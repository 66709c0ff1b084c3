// Worker processes: this program, started several times, each doing one job at a time.
//
// A job is text on the worker's stdin. The worker answers with JSON objects, one a line: reports of
// its own, then {"finished": true, ...}, or {"error": message, "kind": name of an error type},
// which WorkerPool throws again. Other lines, as a library may print them, are passed over.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/runtime/worker_error.h"

namespace fovea {

struct WorkerJob {
  std::string name;  ///< in messages: "focal, seed 1"
  std::string text;  ///< without line ends for workers that do many
};

/// The end of a worker before the end of its job.
struct WorkerDeath {
  size_t job = 0;
  size_t count = 0;    ///< of the job's workers, this one included
  int process = 0;     ///< its id
  std::string how;     ///< "killed by signal 9"
  std::string errors;  ///< the end of its stderr
};

struct WorkerPoolOptions {
  enum class Life {
    one_job,   ///< stdin is the job, and the process ends with it
    many_jobs  ///< each line of stdin is a job; the process ends with stdin
  };

  std::string where;                 ///< begins messages: "compare"
  std::string job_word;              ///< before a job's name in errors: "the run "
  std::vector<std::string> command;  ///< the id of this process is added to it
  size_t workers = 1;
  Life life = Life::one_job;
  const std::atomic<bool>* stop = nullptr;  ///< set: a worker that ends is no death
  /// A line of the worker that does `job`.
  std::function<void(size_t job, const nlohmann::ordered_json& line)> heard;
  /// The job is done; `line` is the last one.
  std::function<void(size_t job, const nlohmann::ordered_json& line)> finished;
  /// A worker died; returns what a user can read about it, "its log is 'FILE'", or "".
  std::function<std::string(const WorkerDeath& death)> died;
  std::function<void(std::string_view text)> warning;
  std::string remedy;  ///< of a job whose workers died twice
};

/// Jobs in the order of add(), for as many workers as the options say. One thread.
class WorkerPool {
 public:
  explicit WorkerPool(WorkerPoolOptions options);
  /// Asks workers that are at work to end (SIGTERM), and ends those that do not within 1.5 s.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Puts a job behind the others; returns its number, which counts from 0.
  size_t add(WorkerJob job);
  /// Gives jobs to workers, starts those that are missing, and hears them for up to a tenth of a
  /// second. A worker that dies is told, and its job is done again by another one. IoError where
  /// two die of one job; the error of a worker, with the name of its job.
  void step();
  /// Jobs that no worker has yet.
  size_t waiting() const { return waiting_.size(); }
  bool busy() const;
  /// Jobs that workers do now.
  std::vector<size_t> at_work() const;
  const std::string& name_of(size_t job) const { return jobs_.at(job).name; }

 private:
  struct Worker;

  void give_jobs();
  void start(size_t job);
  void wait(int milliseconds);
  bool read(Worker& worker);
  void hear(Worker& worker, std::string_view text);
  void leave(Worker& worker);
  void stop_all();

  WorkerPoolOptions options_;
  std::vector<WorkerJob> jobs_;
  std::vector<size_t> deaths_;  // by job
  std::deque<size_t> waiting_;
  std::list<Worker> workers_;
};

}  // namespace fovea
