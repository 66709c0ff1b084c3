// fovea compare: variants x seeds under one budget, a table, compare.json and an HTML report.
// `fovea compare FILE.json` makes table and report of results that are there, trained anywhere.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/interruption.h"
#include "cli/verbs.h"
#include "cli/worker.h"
#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/compare/compare.h"
#include "fovea/config/reader.h"
#include "fovea/report/html_report.h"
#include "fovea/report/table.h"
#include "fovea/runtime/rank_place.h"
#include "fovea/runtime/spawn.h"

namespace fovea::cli {
namespace {

struct CompareVerbOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  std::string workers;
  bool print_config = false;
};

std::vector<std::string> overrides_of(const CompareVerbOptions& options) {
  std::vector<std::string> all = options.overrides;
  if (!options.workers.empty()) all.push_back("compare.workers=" + options.workers);
  return all;
}

std::string command_line(const CompareVerbOptions& options) {
  const std::vector<std::string> overrides = overrides_of(options);
  return fmt::format("fovea compare {}{}{}", options.recipe, overrides.empty() ? "" : " ",
                     fmt::join(overrides, " "));
}

void show(const CompareResult& result, const std::filesystem::path& json,
          const std::filesystem::path& html, const Globals& globals) {
  save_html_report(result, html);
  if (globals.json) {
    print(to_json(result).dump(2) + "\n");
    return;
  }
  const int64_t width = stdout_width();
  print(compare_samples(result, width) + "\n" + compare_table(result, width));
  print(fmt::format("\nreport: {}\ndata:   {}\n", html.string(), json.string()));
}

/// Table and report of a compare.json, which stays as it is.
void show_results(const CompareVerbOptions& options, const Globals& globals) {
  std::vector<std::string> others = overrides_of(options);
  if (options.print_config) others.push_back("--print-config");
  require<UsageError>(others.empty(), "compare",
                      "expected '{}' alone, because its runs are done; got {}", options.recipe,
                      fmt::join(others, " "));
  const std::filesystem::path json = options.recipe;
  show(load_compare_result(json), json, std::filesystem::path(json).replace_extension(".html"),
       globals);
}

void run(const CompareVerbOptions& options, const Globals& given) {
  if (options.recipe.ends_with(".json")) return show_results(options, given);
  const LoadedRecipe loaded = load_recipe(options.recipe, overrides_of(options));
  const CompareConfig config = read_compare_config(loaded.compare);
  const Recipe base = loaded.recipe.resolved();
  if (options.print_config) {
    print(fields_to_yaml(base, true));
    return;
  }
  const RankPlace place = read_rank_place();
  const bool first = place.rank == 0;
  require<UsageError>(place.alone() || config.workers_given() <= 1, "compare",
                      "expected --workers or a launcher; got both: {} has started {} processes, "
                      "which share the runs",
                      launcher_name(place.launcher), place.size);
  const std::filesystem::path folder = base.run_folder;
  make_folders(folder);
  std::optional<FolderLock> lock;
  if (first) lock.emplace(folder);
  Globals globals = given;
  globals.quiet = given.quiet || !first;
  Progress progress(stderr_progress(globals));
  const InterruptGuard interrupt(first ? say_that_it_stops : nullptr);
  CompareCallbacks callbacks;
  callbacks.sharing = {.rank = place.rank, .ranks = place.size};
  callbacks.stop = interrupt.flag();
  callbacks.worker = {kThisProgram, kWorkerWord};
  callbacks.message = [&](std::string_view text) { progress.message(text); };
  callbacks.warning = [&](std::string_view text) { progress.warning(text); };
  callbacks.data = [&](const CorpusProgress& p) {
    require<Interrupted>(!*interrupt.flag(), "compare",
                         "stopped while the text was read; the same command goes on");
    progress.update({.label = "reading " + p.source,
                     .done = static_cast<double>(p.bytes_done),
                     .total = static_cast<double>(p.bytes)});
  };
  callbacks.progress = [&](const CompareProgress& p) {
    progress.update({.label = p.label,
                     .done = p.fraction,
                     .total = 1.0,
                     .loss = p.loss,
                     .tokens_per_second = p.tokens_per_second});
  };
  const std::filesystem::path json = folder / "compare.json", html = folder / "report.html";
  const std::string command = command_line(options);
  callbacks.result = [&](const CompareResult& so_far) {
    if (!first) return;
    CompareResult copy = so_far;
    copy.command = command;
    save_compare_result(copy, json);
  };
  CompareResult result = run_compare(loaded, config, callbacks);
  progress.finish();
  if (!first) return;
  result.command = command;
  save_compare_result(result, json);
  show(result, json, html, globals);
}

}  // namespace

Verb add_compare_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<CompareVerbOptions>();
  Command* verb = app.add_subcommand(
      "compare", "train several variants under one budget and report honestly which is better");
  verb->add_option("recipe", options->recipe,
                   "YAML file with a 'compare' map; or a compare.json, whose table and report are "
                   "made anew")
      ->required();
  verb->add_option("overrides", options->overrides,
                   "key=value, for example data.sources.0.path=my.txt compare.seeds=[0,1]");
  verb->add_option("--workers", options->workers,
                   "N or auto: runs that train at a time, each in a process of its own with one "
                   "thread; 1: one after the other with all threads; auto, the default: as many as "
                   "threads where models are small (the same as compare.workers=N)");
  verb->add_flag("--print-config", options->print_config,
                 "print the resolved base recipe with help for every key, and stop");
  add_global_options(*verb, globals);
  verb->footer([] { return compare_keys_help(); });
  return {.parser = verb, .run = [options, &globals] { run(*options, globals); }, .resumes = true};
}

}  // namespace fovea::cli
