// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_systems.h"

#include <nlohmann/json.hpp>

#include "cli/interruption.h"
#include "cli/options.h"
#include "fovea/base/files.h"
#include "fovea/eval/score_documents.h"
#include "fovea/report/retrofit_page.h"
#include "fovea/report/table.h"
#include "fovea/runtime/machine.h"

namespace fovea::cli {
namespace {

std::string percent(double share) { return fmt::format("{:.1f} %", 100.0 * share); }

std::string megabytes(const std::optional<double>& bytes) {
  return bytes ? fmt::format("{:.2f}", *bytes / 1e6) : "";
}

/// "+0.123 +- 0.010", with a star where the difference is significant.
std::string difference_text(const SideBySideScore& s) {
  if (s.difference.pairs == 0) return "";
  const std::string error =
      std::isfinite(s.difference.error) ? fmt::format(" ± {:.3f}", s.difference.error) : "";
  return fmt::format("{:+.3f}{}{}", s.difference.mean, error, s.p < kSignificance ? " *" : "");
}

void print_systems(const SideBySideResult& result, const SideBySideOptions& how) {
  std::vector<TableColumn> columns{
      {.title = "attention", .shrinks = true}, {.title = "tokens", .right = true},
      {.title = "pairs", .right = true},       {.title = "MB read", .right = true},
      {.title = "ppl/token", .right = true},   {.title = "nats to the first", .right = true}};
  if (how.copy > 0) columns.push_back({.title = "copy ppl", .right = true});
  if (how.needles > 0) columns.push_back({.title = "needles", .right = true});
  if (how.speed) {
    columns.push_back({.title = "reads/s", .right = true});
    columns.push_back({.title = "writes/s", .right = true});
  }
  TextTable table(columns);
  for (size_t n = 0; n < result.rows.front().scores.size(); ++n) {
    if (n > 0) table.add_rule();
    for (const SideBySideRow& row : result.rows) {
      const SideBySideScore& s = row.scores[n];
      std::vector<std::string> cells{
          s.window > 0 ? fmt::format("{} ({})", row.system.name, s.window) : row.system.name,
          std::to_string(s.length),
          s.pairs ? percent(*s.pairs) : "",
          megabytes(s.bytes_read),
          fmt::format("{:.3f}", s.perplexity),
          difference_text(s)};
      if (how.copy > 0) cells.push_back(fmt::format("{:.3f}", s.copy));
      if (how.needles > 0) cells.push_back(s.needle < 0.0 ? "" : percent(s.needle));
      if (how.speed) {
        cells.push_back(s.speed ? fmt::format("{:.0f}", s.speed->prompt_rate) : "");
        cells.push_back(s.speed ? fmt::format("{:.1f}", s.speed->rate) : "");
      }
      table.add_row(std::move(cells));
    }
  }
  print(table.render(stdout_width()));
  print(
      "\nMB read: of the caches, to write a token behind as many others;\n"
      "nats to the first: mean difference a token over paired windows, its standard error;\n"
      "*: p below 0.05 after Holm's correction over the systems\n");
  for (const SideBySideRow& row : result.rows) {
    if (row.drawn > 0)
      print(fmt::format("{}: {} tensors are drawn, not trained\n", row.system.name, row.drawn));
    if (!row.cannot_write.empty())
      print(fmt::format("{} writes no text: {}\n", row.system.name, row.cannot_write));
  }
}

RetrofitPage page_of(const SideBySideResult& result, const SideBySideOptions& how,
                     const std::string& file) {
  RetrofitPage page{.base = how.model.filename().string(),
                    .kinds = "Attentions side by side",
                    .command = fmt::format("fovea eval {} --systems {}", how.model.string(), file),
                    .code_version = code_version(),
                    .machine = machine_text(how.device)};
  for (const SideBySideRow& row : result.rows) {
    for (const SideBySideScore& s : row.scores) {
      const std::string name = fmt::format("{}, {} tokens", row.system.name, s.length);
      page.rows.push_back({row.system.name, name, s.pairs.value_or(1.0), s.perplexity, s.copy,
                           s.bytes_read.value_or(0.0)});
      if (s.speed)
        page.speeds.push_back({row.system.name, s.length, s.speed->prompt_rate, s.speed->rate});
    }
  }
  return page;
}

}  // namespace

void add_eval_system_options(Command& verb, EvalSystemOptions& options) {
  verb.add_option("--systems", options.systems,
                  "YAML file of attentions to run side by side with --text (docs/side-by-side.md)");
  verb.add_option("--needles", options.needles,
                  "with --systems: needles to find at each of --lengths; 0 = none")
      ->check(in_range({0, 100000}));
  verb.add_option(
          "--tokens", options.tokens,
          "with --systems: tokens of the text at each of --lengths, at most; with --stream: of the "
          "text; 0 = all")
      ->check(in_range({0, int64_t{1} << 40}));
  verb.add_flag("--speed", options.speed,
                "with --systems: tokens a second, reading and writing behind each of --lengths");
}

void run_eval_systems(const EvalSystemOptions& options, SideBySideOptions how,
                      const std::vector<std::string>& texts, const std::string& out,
                      const Globals& globals) {
  const AttentionSystems systems = read_attention_systems(options.systems);
  how.needles = options.needles, how.tokens = options.tokens, how.speed = options.speed;
  if (!out.empty()) {
    make_folders(out);  // before the work whose result it takes
    how.finished = std::filesystem::path(out) / "side-by-side.finished.json";
  }
  Progress progress(stderr_progress(globals));
  InterruptGuard interrupt;
  leave_within_a_second(
      interrupt, globals,
      fmt::format("[eval] interrupted; {}",
                  out.empty() ? "nothing was written"
                              : "what is measured stays: the same command goes on"));
  const SideBySideResult result = compare_attentions(
      systems, read_score_documents(texts), how,
      [&](std::string_view label, int64_t done, int64_t total) {
        progress.update({.label = std::string(label),
                         .done = static_cast<double>(done),
                         .total = static_cast<double>(total)});
      },
      interrupt.flag());
  progress.finish();
  if (!out.empty()) {
    const std::filesystem::path folder = out;
    write_file(folder / "side-by-side.json", result.to_json().dump(2) + "\n");
    write_file(folder / "side-by-side.html", retrofit_html(page_of(result, how, options.systems)));
  }
  if (globals.json) return print(result.to_json().dump(2) + "\n");
  print_systems(result, how);
  if (!out.empty()) print(fmt::format("\npage: {}/side-by-side.html\n", out));
}

}  // namespace fovea::cli
