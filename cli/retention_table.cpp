// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/retention_table.h"

#include "cli/verbs.h"
#include "fovea/report/table.h"

namespace fovea::cli {

void print_retention(const RetentionResult& r) {
  const bool copy = r.full.copy > 0.0;
  std::vector<TableColumn> columns{{.title = "attention"},
                                   {.title = "pairs", .right = true},
                                   {.title = "distant", .right = true},
                                   {.title = "ppl/token", .right = true}};
  if (copy) columns.push_back({.title = "copy ppl", .right = true});
  TextTable table(columns);
  const auto add = [&](const std::string& name, const RetentionScore& s, bool distant) {
    std::vector<std::string> cells{
        name, fmt::format("{:.1f} %", 100.0 * s.pairs),
        distant ? fmt::format("{:.1f} %", 100.0 * s.distant) : std::string(),
        fmt::format("{:.3f}", s.perplexity)};
    if (copy) cells.push_back(fmt::format("{:.3f}", s.copy));
    table.add_row(std::move(cells));
  };
  add("full", r.full, false);
  add("soft gate", r.soft, false);
  for (const RetentionRow& row : r.rows) {
    table.add_rule();
    add(fmt::format("top-{} of {}{}", row.top_k, r.groups, row.full ? ": full attention" : ""),
        row.trained, !row.full);
    if (row.full) break;  // larger ones are no other
    add(fmt::format("  window {} and sinks", row.window), row.windowed, false);
    add(fmt::format("  stride {}, window {} and sinks", row.stride, r.local_window), row.strided,
        false);
    add("  random groups", row.random, true);
    add("  groups by hash of token", row.hashed, true);
  }
  print(table.render(stdout_width()));
  print(fmt::format("\nwindow {} tokens, stride {}; local: {} tokens and {} sinks\n",
                    r.options.window, r.options.stride, r.local_window, r.sinks));
}

}  // namespace fovea::cli
