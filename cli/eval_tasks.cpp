// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_tasks.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/eval_workers.h"
#include "cli/interruption.h"
#include "cli/options.h"
#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/paths.h"
#include "fovea/eval/compare_logs.h"
#include "fovea/eval/run_task.h"
#include "fovea/eval/task_list.h"
#include "fovea/eval/task_pairs.h"
#include "fovea/eval/task_ranks.h"
#include "fovea/eval/task_workers.h"
#include "fovea/report/heat_map.h"
#include "fovea/report/table.h"
#include "fovea/runtime/machine.h"

namespace fovea::cli {
namespace {

constexpr int64_t kMostQuestions = int64_t{1} << 40;
constexpr int64_t kMostShots = 1000;

std::filesystem::path log_of(const std::filesystem::path& folder, const std::string& task) {
  return folder / "results" / (task + ".jsonl");
}

std::string value_text(const MetricScore& m) {
  return is_share(m.name) ? fmt::format("{:.2f} %", 100.0 * m.value)
                          : fmt::format("{:.4g}", m.value);
}

std::string error_text(const MetricScore& m) {
  if (!std::isfinite(m.error)) return "";
  return is_share(m.name) ? fmt::format("{:.2f}", 100.0 * m.error) : fmt::format("{:.3g}", m.error);
}

void print_scores(const std::vector<TaskScore>& scores) {
  TextTable table({{.title = "task", .shrinks = true},
                   {.title = "metric"},
                   {.title = "score", .right = true},
                   {.title = "standard error", .right = true},
                   {.title = "chance", .right = true, .importance = 1},
                   {.title = "questions", .right = true},
                   {.title = "questions/s", .right = true, .importance = 2}});
  for (const TaskScore& score : scores) {
    if (&score != &scores.front()) table.add_rule();
    const double speed = score.asked > 0 ? static_cast<double>(score.asked) / score.seconds : 0.0;
    bool first = true;
    for (const MetricScore& m : score.metrics) {
      const std::string name = m.name == score.headline ? m.name + " *" : m.name;
      table.add_row(
          {first ? score.task : "", name, value_text(m), error_text(m),
           first && score.chance >= 0.0 ? fmt::format("{:.1f} %", 100.0 * score.chance) : "",
           std::to_string(m.items), first && speed > 0.0 ? fmt::format("{:.1f}", speed) : ""});
      first = false;
    }
    if (score.contexts_cut > 0)
      table.add_note(
          fmt::format("{}: {} contexts are longer than the model's; their first tokens "
                      "were left out",
                      score.task, score.contexts_cut));
  }
  for (const TaskScore& score : scores) {
    if (!score.pairs) continue;
    const TaskPairs& pairs = *score.pairs;
    table.add_note(fmt::format(
        "{}: this attention reads {:.1f} % of the pairs of a question ({:.0f} tokens){}",
        score.task, 100.0 * pairs.share, pairs.tokens,
        pairs.untouched == 0
            ? ""
            : fmt::format("; {} of {} counted questions lose none, and show nothing of it",
                          pairs.untouched, pairs.questions)));
  }
  table.add_note("* stands for the task");
  print(table.render(stdout_width()));
}

void print_groups(const TaskScore& score) {
  if (score.groups.empty()) return;
  TextTable table({{.title = score.task + " by group", .shrinks = true},
                   {.title = score.headline, .right = true},
                   {.title = "standard error", .right = true},
                   {.title = "questions", .right = true}});
  for (const PartScore& part : score.groups) {
    for (const MetricScore& m : part.metrics) {
      if (m.name == score.headline)
        table.add_row({part.group, value_text(m), error_text(m), std::to_string(m.items)});
    }
  }
  print("\n" + table.render(stdout_width()));
}

/// Score by length and depth of the tasks whose questions have both.
std::vector<HeatMap> heat_maps(const std::vector<TaskScore>& scores) {
  std::vector<HeatMap> maps;
  for (const TaskScore& score : scores) {
    std::vector<HeatPoint> points;
    std::string column = "length";
    for (const PartScore& cell : score.cells) {
      if (cell.axes.contains("pairs")) column = "pairs";
      if (!cell.axes.contains(column) || !cell.axes.contains("depth")) continue;
      for (const MetricScore& m : cell.metrics) {
        if (m.name == score.headline)
          points.push_back({.length = cell.axes.at(column),
                            .depth = cell.axes.at("depth"),
                            .value = m.value,
                            .items = m.items});
      }
    }
    if (points.empty()) continue;
    maps.push_back(make_heat_map(score.task + ": " + score.headline, points));
    maps.back().column_title = column;
  }
  return maps;
}

/// Score by the axes of the tasks that have no depth.
void print_cells(const TaskScore& score) {
  if (score.cells.size() < 2 || score.cells.front().axes.contains("depth")) return;
  std::string axes;
  for (const auto& [axis, place] : score.cells.front().axes)
    axes += (axes.empty() ? "" : ", ") + axis;
  TextTable table({{.title = score.task + " by " + axes, .shrinks = true},
                   {.title = score.headline, .right = true},
                   {.title = "standard error", .right = true},
                   {.title = "questions", .right = true}});
  for (const PartScore& part : score.cells) {
    std::string place;
    for (const auto& [axis, value] : part.axes)
      place += fmt::format("{}{:g}", place.empty() ? "" : ", ", value);
    for (const MetricScore& m : part.metrics) {
      if (m.name == score.headline)
        table.add_row({place, value_text(m), error_text(m), std::to_string(m.items)});
    }
  }
  print("\n" + table.render(stdout_width()));
}

/// What --against compares: the logs of this --out and of another one, task by task.
std::vector<LogComparison> compare_with(const EvalTaskOptions& options,
                                        const std::vector<TaskScore>& scores) {
  std::vector<LogComparison> comparisons;
  if (options.against.empty()) return comparisons;
  for (const TaskScore& score : scores)
    comparisons.push_back(compare_logs(read_item_log(log_of(options.out, score.task)),
                                       read_item_log(log_of(options.against, score.task)),
                                       score.task, score.headline));
  correct_by_holm(comparisons);
  return comparisons;
}

void print_comparisons(const std::vector<LogComparison>& comparisons, const std::string& other) {
  TextTable table({{.title = "against " + other, .shrinks = true},
                   {.title = "metric"},
                   {.title = "this", .right = true},
                   {.title = "other", .right = true},
                   {.title = "difference", .right = true},
                   {.title = "only this", .right = true, .importance = 1},
                   {.title = "only other", .right = true, .importance = 1},
                   {.title = "p", .right = true},
                   {.title = "questions", .right = true}});
  for (const LogComparison& c : comparisons) {
    const double factor = c.metric != "nll" && is_share(c.metric) ? 100.0 : 1.0;
    const auto text = [&](double value) { return fmt::format("{:.2f}", factor * value); };
    const auto& mcnemar = c.pairs.mcnemar;
    table.add_row(
        {c.task, factor == 100.0 ? c.metric + ", %" : c.metric, text(c.pairs.first_mean),
         text(c.pairs.second_mean),
         fmt::format("{:+.2f} ± {:.2f}", factor * c.pairs.test.mean, factor * c.pairs.test.error),
         mcnemar ? std::to_string(mcnemar->only_first) : "",
         mcnemar ? std::to_string(mcnemar->only_second) : "",
         fmt::format("{:.2g}{}", c.corrected_p, c.corrected_p < kSignificance ? " *" : ""),
         std::to_string(c.pairs.items)});
    if (c.only_in_first + c.only_in_second > 0)
      table.add_note(fmt::format("{}: {} and {} questions of one side alone were left out", c.task,
                                 c.only_in_first, c.only_in_second));
  }
  if (const std::optional<TaskMean> mean = mean_over_tasks(comparisons)) {
    table.add_row(
        {fmt::format("mean of {} tasks", mean->tasks), "%",
         fmt::format("{:.2f}", 100 * mean->first), fmt::format("{:.2f}", 100 * mean->second),
         fmt::format("{:+.2f} ± {:.2f}", 100 * mean->test.mean, 100 * mean->test.error), "", "",
         fmt::format("{:.2g}{}", mean->test.p, mean->test.p < kSignificance ? " *" : ""),
         std::to_string(mean->test.pairs)});
  }
  table.add_note(
      fmt::format("paired by question; p: McNemar's exact test where scores are 0 and 1, else a "
                  "t-test, after Holm's correction over the tasks; * below {:g}",
                  kSignificance));
  print("\n" + table.render(stdout_width()));
}

void warn_of_refusals(const TaskScore& score) {
  if (score.refused == 0) return;
  warn(fmt::format("{}: {} of {} questions cannot be asked and are no part of the score: {}",
                   score.task, score.refused, score.refused + score.items,
                   fmt::join(score.refusals, "; ")));
}

}  // namespace

void add_eval_task_options(Command& verb, EvalTaskOptions& options) {
  verb.add_option("--tasks", options.tasks,
                  "tasks to ask, with commas between them: names from the list below, or .yaml "
                  "files of your own")
      ->delimiter(',');
  verb.add_option("--data", options.data, "folder of the tasks' data");
  verb.add_option("--limit", options.limit, "questions of a task at most; 0 = all")
      ->check(in_range({0, kMostQuestions}));
  verb.add_option("--shots", options.shots,
                  "solved examples before each question; -1 = the task's own number")
      ->check(in_range({-1, kMostShots}));
  verb.add_option("--seed", options.seed, "of drawn shots, made questions and written texts")
      ->check(in_range(ranges::kSeeds));
  verb.add_option("--lengths", options.lengths,
                  "tokens of made questions, with commas between them; default: the task's own")
      ->check(in_range({1, ranges::kMostPositions}))
      ->delimiter(',');
  verb.add_option("--depths", options.depths,
                  "where made questions hide what they ask for, 0 = start ... 1 = end, with commas "
                  "between them; default: the task's own")
      ->check(in_range({0, 1}))
      ->delimiter(',');
  verb.add_option("--background", options.background,
                  "text file, or folder of *.txt, that made questions hide things in; default: the "
                  "essays of the data, else prose that comes with Fovea");
  verb.add_option("--context", options.context,
                  "tokens that the model reads at most; 0 = its trained context")
      ->check(in_range(ranges::kPositionCounts));
  verb.add_option(
      "--out", options.out,
      "folder for tasks.json, results/TASK.jsonl, a line a question, and heat-maps.html "
      "of tasks with depths; the same command goes on where it was stopped");
  verb.add_option("--workers", options.workers,
                  "N or auto: with --tasks, processes that answer side by side, one thread each; "
                  "auto: as many as threads, where half of the memory holds their models; under a "
                  "launcher its processes do")
      ->capture_default_str();
  verb.add_option("--against", options.against,
                  "with --out: the --out folder of another model; the two are compared question by "
                  "question (McNemar's test, bootstrap in tasks.json)");
}

void run_eval_tasks(const EvalTaskOptions& options, const Globals& globals,
                    const LoadedModel& loaded, const std::string& model, Communicator& ranks) {
  if (globals.eval_workers > 0) return answer_task_parts(loaded, globals.eval_workers);
  std::vector<Task> tasks;
  for (const std::string& name : options.tasks) tasks.push_back(find_task(name));
  require<UsageError>(options.data.empty() || is_folder(options.data), "--data",
                      "expected a folder; got '{}'", options.data);
  require<UsageError>(options.against.empty() || !options.out.empty(), "--against",
                      "needs --out: it compares the log of this model with that of another");
  for (const Task& task : tasks) {
    const std::filesystem::path other = log_of(options.against, task.name);
    require<InputError>(options.against.empty() || path_exists(other), other.string(),
                        "expected the log of '{}' in a folder that --out has written; it is not "
                        "there",
                        task.name);
  }
  std::optional<TaskPartAnswerer> own;  // of a rank
  if (ranks.size() > 1) {
    require<UsageError>(options.workers == "1", "--workers",
                        "expected --workers or a launcher, whose {} processes are the workers; got "
                        "both",
                        ranks.size());
    at::set_num_threads(1);
    own.emplace(loaded.model, *loaded.tokenizer, ranks.size());
    if (!ranks.is_first()) return answer_on_rank(ranks, *own);
  }
  Progress progress(stderr_progress(globals));
  InterruptGuard interrupt;
  leave_within_a_second(
      interrupt, globals,
      fmt::format("[eval] interrupted; {}",
                  options.out.empty() ? "nothing was written"
                                      : "what is answered stays: the same command goes on"));
  std::vector<TaskScore> scores;
  const std::filesystem::path out(options.out);
  const int64_t count = choose_eval_workers(options.workers, loaded.model.device());
  std::unique_ptr<TaskWorkers> workers;
  if (own) {
    progress.message(fmt::format("{} ranks, one thread each", ranks.size()));
    workers = std::make_unique<TaskRanks>(ranks, *own);
  } else if (count > 1) {
    progress.message(fmt::format("{} workers, one thread each", count));
    workers = std::make_unique<TaskProcesses>(
        TaskWorkerOptions{.command = eval_worker_command(count, globals),
                          .workers = count,
                          .stop = interrupt.flag(),
                          .warning = [&](std::string_view text) { progress.warning(text); }});
  }
  for (const Task& task : tasks) {
    const TaskInput input{.tokenizer = *loaded.tokenizer,
                          .data = options.data,
                          .limit = options.limit,
                          .shots = options.shots,
                          .seed = static_cast<uint64_t>(options.seed),
                          .lengths = options.lengths,
                          .depths = options.depths,
                          .background = options.background};
    scores.push_back(run_task(loaded.model, *loaded.tokenizer, task, input,
                              {.context = options.context,
                               .log = options.out.empty() ? out : log_of(out, task.name),
                               .model = std::filesystem::path(model).filename().string(),
                               .progress =
                                   [&](int64_t done, int64_t total) {
                                     progress.update({.label = task.name,
                                                      .done = static_cast<double>(done),
                                                      .total = static_cast<double>(total)});
                                   },
                               .interrupt = interrupt.flag(),
                               .workers = workers.get()}));
    scores.back().pairs =
        task_pairs(loaded.model, *loaded.tokenizer, task, input, options.context, [&] {
          progress.update({.label = task.name + ", counting pairs"});
          require<Interrupted>(!*interrupt.flag(), "eval", "interrupted");
        });
  }
  workers.reset();
  progress.finish();
  nlohmann::ordered_json json{{"model", std::filesystem::path(model).filename().string()},
                              {"tasks", nlohmann::ordered_json::array()}};
  for (const TaskScore& score : scores) {
    warn_of_refusals(score);
    json["tasks"].push_back(score.to_json());
  }
  const std::vector<LogComparison> comparisons = compare_with(options, scores);
  for (const LogComparison& c : comparisons) json["against"].push_back(c.to_json());
  if (const auto mean = mean_over_tasks(comparisons)) json["against_mean"] = mean->to_json();
  const std::vector<HeatMap> maps = heat_maps(scores);
  if (!options.out.empty()) write_file(out / "tasks.json", json.dump(2) + "\n");
  if (!options.out.empty() && !maps.empty())
    write_file(out / "heat-maps.html",
               heat_map_page(json["model"].get<std::string>(), maps, code_version()));
  if (globals.json) return print(json.dump(2) + "\n");
  print_scores(scores);
  for (const TaskScore& score : scores) {
    print_groups(score);
    print_cells(score);
  }
  if (!comparisons.empty()) print_comparisons(comparisons, options.against);
  for (const HeatMap& map : maps) print("\n" + heat_map_text(map, stdout_width()));
}

std::string known_tasks_help() {
  std::string text = "\nTasks:\n";
  for (const Task& task : known_tasks())
    text += fmt::format("  {:<20} {}\n", task.name, task.title);
  return text;
}

}  // namespace fovea::cli
