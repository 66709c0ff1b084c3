// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/task_list.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/nearest_name.h"
#include "fovea/eval/made_tasks.h"
#include "fovea/eval/task_file.h"

namespace fovea {

std::vector<Task> known_tasks() {
  std::vector<Task> tasks = made_tasks();
  for (const auto& [name, text] : task_texts())
    tasks.push_back(make_task(parse_task_file(text, name)));
  std::ranges::sort(tasks, {}, &Task::name);
  return tasks;
}

Task find_task(const std::string& name) {
  if (name.ends_with(".yaml") || name.ends_with(".yml")) {
    const std::filesystem::path path(name);
    return make_task(parse_task_file(read_file(path), path.filename().string()),
                     path.parent_path());
  }
  std::vector<std::string> names;
  for (Task& task : known_tasks()) {
    if (task.name == name) return std::move(task);
    names.push_back(task.name);
  }
  fail<ConfigError>("tasks", "expected the name of a task or a .yaml file; got '{}'{}; known: {}",
                    name, did_you_mean(name, names), fmt::join(names, ", "));
}

}  // namespace fovea
