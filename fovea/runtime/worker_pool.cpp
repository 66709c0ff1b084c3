// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/worker_pool.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "fovea/runtime/child_process.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// A worker saves a small model in milliseconds; who asks to stop waits at most 2 s.
constexpr std::chrono::milliseconds kStopWithin{1500};
constexpr int kLookEveryMs = 100;
constexpr size_t kMostDeaths = 2;  // of workers that do one job

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
      {"NumericalError", [](const std::string& m) { throw NumericalError(m); }},
      {"LockedError", [](const std::string& m) { throw LockedError(m); }},
      {"IoError", [](const std::string& m) { throw IoError(m); }},
      {"MemoryError", [](const std::string& m) { throw MemoryError(m); }}};
  for (const auto& [name, thrower] : kThrowers)
    if (name == kind) thrower(message);
  throw Error(message);
}

}  // namespace

struct WorkerPool::Worker {
  ChildProcess process;
  std::optional<size_t> job;  // none: it waits for one
  Json last;                  // line that ends the job
  std::string error, kind;    // thrown by it

  bool finished() const { return !last.is_null(); }
};

WorkerPool::WorkerPool(WorkerPoolOptions options) : options_(std::move(options)) {
  options_.command.push_back(std::to_string(::getpid()));
}

WorkerPool::~WorkerPool() { stop_all(); }

size_t WorkerPool::add(WorkerJob job) {
  jobs_.push_back(std::move(job));
  deaths_.push_back(0);
  waiting_.push_back(jobs_.size() - 1);
  return jobs_.size() - 1;
}

bool WorkerPool::busy() const { return !waiting_.empty() || !at_work().empty(); }

std::vector<size_t> WorkerPool::at_work() const {
  std::vector<size_t> jobs;
  for (const Worker& worker : workers_)
    if (worker.job) jobs.push_back(*worker.job);
  return jobs;
}

void WorkerPool::step() {
  give_jobs();
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
}

void WorkerPool::give_jobs() {
  for (Worker& worker : workers_) {
    if (worker.job || waiting_.empty()) continue;
    worker.job = waiting_.front();
    waiting_.pop_front();
    worker.process.write(jobs_[*worker.job].text + "\n");
  }
  while (workers_.size() < options_.workers && !waiting_.empty()) {
    start(waiting_.front());
    waiting_.pop_front();
  }
}

void WorkerPool::start(size_t job) {
  const bool many = options_.life == WorkerPoolOptions::Life::many_jobs;
  const auto ends = many ? ChildProcess::Input::goes_on : ChildProcess::Input::whole;
  workers_.push_back({.process = ChildProcess(options_.command, jobs_[job].text + "\n", ends),
                      .job = job,
                      .last = {},
                      .error = {},
                      .kind = {}});
}

void WorkerPool::wait(int milliseconds) {
  std::vector<ChildProcess*> processes;
  for (Worker& worker : workers_) processes.push_back(&worker.process);
  ChildProcess::wait_for_any(processes, milliseconds);
}

bool WorkerPool::read(Worker& worker) {
  return worker.process.read([&](std::string_view text) { hear(worker, text); });
}

void WorkerPool::hear(Worker& worker, std::string_view text) {
  Json line = Json::parse(text, nullptr, false);
  if (!line.is_object() || !worker.job) return;
  const size_t job = *worker.job;
  if (line.contains("error")) {
    worker.error = line.value("error", "");
    worker.kind = line.value("kind", "");
    return;
  }
  if (options_.heard) options_.heard(job, line);
  if (!line.value("finished", false)) return;
  if (options_.life == WorkerPoolOptions::Life::one_job) {
    worker.last = std::move(line);  // its files are free when it has ended
    return;
  }
  worker.job.reset();
  if (options_.finished) options_.finished(job, line);
}

/// Of a worker whose streams are closed.
void WorkerPool::leave(Worker& worker) {
  const int process = worker.process.id();
  std::string how = worker.process.wait();
  // Who stops this process may have stopped the worker, too.
  if (options_.stop != nullptr && options_.stop->load()) return;
  if (!worker.job) return;
  const size_t job = *worker.job;
  const std::string& name = jobs_[job].name;
  if (!worker.error.empty())
    throw_again(worker.kind, fmt::format("[{}] in {}'{}': {}", options_.where, options_.job_word,
                                         name, worker.error));
  if (how.empty() && worker.finished()) {
    if (options_.finished) options_.finished(job, worker.last);
    return;
  }
  if (how.empty()) how = "it stopped before its end";
  const size_t count = ++deaths_[job];
  std::string more;
  if (options_.died)
    more = options_.died({.job = job,
                          .count = count,
                          .process = process,
                          .how = how,
                          .errors = worker.process.errors()});
  if (!more.empty()) more = "; " + more;
  require<IoError>(count < kMostDeaths, options_.where, "the worker of '{}' died twice ({}){}; {}",
                   name, how, more, options_.remedy);
  if (options_.warning)
    options_.warning(
        fmt::format("the worker of '{}' died ({}); it is started again{}", name, how, more));
  waiting_.push_front(job);
}

void WorkerPool::stop_all() {
  for (Worker& worker : workers_) {
    worker.process.end_input();
    if (worker.job) worker.process.signal(SIGTERM);
  }
  const auto deadline = Clock::now() + kStopWithin;
  while (!workers_.empty() && Clock::now() < deadline) {
    wait(kLookEveryMs);
    workers_.remove_if([](Worker& worker) {
      if (worker.process.read([](std::string_view) {})) return false;
      worker.process.wait();
      return true;
    });
  }
  workers_.clear();  // ends those that are left
}

void throw_worker_error(const Json& line, const std::string& before) {
  throw_again(line.value("kind", ""), before + line.value("error", ""));
}

std::string worker_error_line(const Error& error) {
  return Json{{"error", error.what()}, {"kind", error.kind()}}.dump(
             -1, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

}  // namespace fovea
