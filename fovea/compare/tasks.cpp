// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/tasks.h"

#include <fmt/format.h>

#include <algorithm>

#include "fovea/base/files.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/eval/run_task.h"
#include "fovea/eval/task_list.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

fs::path log_folder(const fs::path& run_folder, int64_t step) {
  return run_folder / "results" / std::to_string(step);
}

TaskInput input_of(const CompareTasks& tasks, const Tokenizer& tokenizer) {
  return {.tokenizer = tokenizer,
          .data = tasks.data,
          .limit = tasks.limit,
          .shots = tasks.shots,
          .seed = static_cast<uint64_t>(tasks.seed),
          .lengths = tasks.lengths,
          .depths = tasks.depths,
          .background = tasks.background};
}

void answer(const CompareTasks& tasks, const Transformer& model, const Tokenizer& tokenizer,
            int64_t step, const fs::path& run_folder, const TaskCallbacks& callbacks,
            std::vector<TaskPoint>& points) {
  const fs::path folder = log_folder(run_folder, step);
  make_folders(folder);
  for (const std::string& name : tasks.names) {
    const Task task = find_task(name);
    const TaskScore score =
        run_task(model, tokenizer, task, input_of(tasks, tokenizer),
                 {.log = folder / (task.name + ".jsonl"),
                  .model = fmt::format("{} at step {}", run_folder.filename().string(), step),
                  .progress =
                      [&](int64_t done, int64_t total) {
                        if (callbacks.progress) callbacks.progress(task.name, done, total);
                      },
                  .interrupt = callbacks.stop});
    const MetricScore& metric = score.metric(score.headline);
    points.push_back({.task = task.name,
                      .metric = metric.name,
                      .step = step,
                      .value = metric.value,
                      .error = metric.error,
                      .items = metric.items});
  }
}

}  // namespace

void check_tasks(const CompareTasks& tasks, const Tokenizer& tokenizer) {
  for (const std::string& name : tasks.names) find_task(name).items(input_of(tasks, tokenizer));
}

size_t count_task_logs(const fs::path& run_folder, int64_t step) {
  const fs::path folder = log_folder(run_folder, step);
  if (!fs::is_directory(folder)) return 0;
  return static_cast<size_t>(std::ranges::count_if(
      fs::directory_iterator(folder),
      [](const fs::directory_entry& entry) { return entry.path().extension() == ".jsonl"; }));
}

std::vector<TaskPoint> answer_tasks(const CompareTasks& tasks, const Transformer& model,
                                    const Tokenizer& tokenizer, int64_t step,
                                    const fs::path& run_folder, const TaskCallbacks& callbacks) {
  std::vector<TaskPoint> points;
  if (tasks.checkpoints) {
    for (const CheckpointEntry& entry : list_checkpoints(run_folder)) {
      if (entry.step >= step) continue;
      LoadedModel earlier = load_model(entry.folder);
      earlier.model.compute().dtype = model.compute().dtype;
      answer(tasks, earlier.model, tokenizer, entry.step, run_folder, callbacks, points);
    }
  }
  answer(tasks, model, tokenizer, step, run_folder, callbacks, points);
  return points;
}

}  // namespace fovea
