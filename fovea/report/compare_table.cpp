// What `fovea compare` prints at its end.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <sstream>

#include "fovea/report/format.h"
#include "fovea/report/scaling.h"
#include "fovea/report/table.h"

namespace fovea {

namespace {

std::string task_table(const std::vector<TaskRow>& rows, int64_t width) {
  std::vector<TableColumn> columns;
  for (const std::string& title : task_columns())
    columns.push_back({.title = title, .right = columns.size() > 2});
  TextTable table(columns);
  for (const TaskRow& row : rows) {
    if (&row != &rows.front() && row.task != (&row - 1)->task) table.add_rule();
    table.add_row(task_cells(row));
  }
  return table.render(width);
}

}  // namespace

std::string compare_table(const CompareResult& result, int64_t width) {
  TextTable table({{.title = "variant", .shrinks = true},
                   {.title = "bits/byte"},
                   {.title = "difference", .right = true, .importance = 80},
                   {.title = "95 % interval", .importance = 70},
                   {.title = "p (Holm)", .right = true, .importance = 90},
                   {.title = "verdict"},
                   {.title = "seeds needed", .right = true, .importance = 50},
                   {.title = "perplexity", .importance = 40},
                   {.title = "tokens/s", .right = true, .importance = 30},
                   {.title = "peak memory", .right = true, .importance = 20},
                   {.title = "parameters", .right = true, .importance = 10}});
  for (const CompareBaseline& baseline : result.baselines) {
    const std::string text =
        baseline.text_bytes > 0 ? ", " + bytes_text(static_cast<double>(baseline.text_bytes)) : "";
    table.add_row({baseline.name, fixed_text(baseline.bits_per_byte, 3), "", "", "",
                   "baseline" + text, "", "", "", "", ""});
  }
  if (!result.baselines.empty() && !result.variants.empty()) table.add_rule();
  for (const CompareVariant& variant : result.variants) {
    const VariantSummary& summary = variant.summary;
    const double memory =
        summary.finished_runs > 0 ? static_cast<double>(summary.peak_memory_bytes) : kNotANumber;
    table.add_row({variant.name, spread_text(summary.bits_per_byte, 3), difference_text(summary, 4),
                   interval_text(summary, 4), p_text(summary.corrected_p),
                   std::string(verdict_text(summary.verdict)), pairs_needed_text(summary),
                   spread_text(summary.perplexity, 2), count_text(summary.tokens_per_second),
                   bytes_text(memory), count_text(static_cast<double>(variant.parameters))});
  }
  table.add_note("");
  table.add_note(verdict_rule(result.equivalence_margin));
  for (const std::string& sentence : tuning_sentences(result)) table.add_note(sentence);
  if (!result.origins.empty()) table.add_note(origin_sentence(result));
  if (result.workers > 1) table.add_note(side_by_side_sentence(result));
  for (const ScalingStudy& study : scaling_studies(result)) {
    for (const std::string& sentence : scaling_sentences(study)) table.add_note(sentence);
  }
  for (const CompareVariant& variant : result.variants) {
    for (const CompareRun& run : variant.runs) {
      if (run.failure.empty()) continue;
      table.add_note(fmt::format("{}, seed {}: {}", variant.name, run.seed, run.failure));
    }
  }
  const std::vector<TaskRow> tasks = task_rows(result);
  return table.render(width) + (tasks.empty() ? "" : "\n" + task_table(tasks, width));
}

std::string compare_samples(const CompareResult& result, int64_t width) {
  std::string out;
  for (const CompareVariant& variant : result.variants) {
    if (variant.sample.prompt.empty() && variant.sample.text.empty()) continue;
    out += fmt::format("── {}\n", single_line(variant.name));
    std::istringstream lines(repair_utf8(variant.sample.prompt + variant.sample.text));
    for (std::string line; std::getline(lines, line);) {
      // Spaces at the start of a line carry the meaning of code, so lines are wrapped one by one.
      for (const std::string& part : wrap_text(single_line(line), width > 0 ? width : 100))
        out += part + "\n";
    }
    out += "\n";
  }
  return out;
}

}  // namespace fovea
