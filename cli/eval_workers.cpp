// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_workers.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iostream>

#include "fovea/base/error.h"
#include "fovea/eval/task_workers.h"
#include "fovea/runtime/child_process.h"
#include "fovea/runtime/machine.h"
#include "fovea/runtime/memory_limit.h"
#include "fovea/runtime/spawn.h"

namespace fovea::cli {
namespace {

constexpr int64_t kMostWorkers = 1024;

int64_t given_workers(const std::string& text) {
  int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, count);
  require<UsageError>(error == std::errc() && stop == end && count >= 1 && count <= kMostWorkers,
                      "--workers", "expected auto or a number of processes from 1 to {}; got '{}'",
                      kMostWorkers, text);
  return count;
}

}  // namespace

int64_t become_eval_worker(int& argc, char**& argv) {
  constexpr int kFewest = 5;  // program, word, workers, verb, parent
  require<UsageError>(argc >= kFewest, kEvalWorkerWord, "expected to be started by fovea eval");
  end_with_parent(std::atoi(argv[argc - 1]));
  at::set_num_threads(1);
  const int64_t workers = given_workers(argv[2]);
  argv += 2;
  argc -= 3;
  return workers;
}

int64_t choose_eval_workers(const std::string& workers, at::Device device) {
  const int64_t given = workers == "auto" ? 0 : given_workers(workers);
  require<UsageError>(given <= 1 || device.is_cpu(), "--workers",
                      "expected 1 on a GPU, which all workers would share; got {}", given);
  if (given > 0 || !device.is_cpu()) return std::max<int64_t>(given, 1);
  int64_t count = std::min<int64_t>(at::get_num_threads(), kMostWorkers);
  const int64_t limit = memory_limit_bytes(), one = resident_memory_bytes();
  // Half of the memory stays for caches and the system; this process holds the model, too.
  if (limit > 0 && one > 0) count = std::min(count, limit / 2 / one - 1);
  return std::max<int64_t>(count, 1);
}

std::vector<std::string> eval_worker_command(int64_t workers, const Globals& globals) {
  std::vector<std::string> command{kThisProgram, kEvalWorkerWord, std::to_string(workers)};
  command.insert(command.end(), globals.arguments.begin(), globals.arguments.end());
  return command;
}

void answer_task_parts(const LoadedModel& loaded, int64_t workers) {
  TaskPartAnswerer answerer(loaded.model, *loaded.tokenizer, workers);
  for (std::string line; std::getline(std::cin, line);) print(answerer.answer(line));
}

}  // namespace fovea::cli
