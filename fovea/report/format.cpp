// Units and spreads as text.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fovea {
namespace {

constexpr std::string_view kNothing = "–";

std::string three_digits(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

/// `units` are for 10^0, 10^3, 10^6, ...
std::string scaled_text(double value, std::span<const std::string_view> units) {
  if (!std::isfinite(value)) return std::string(kNothing);
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  const bool whole = unit == 0 && value == std::round(value);
  const std::string number = whole ? fmt::format("{:.0f}", value) : three_digits(value);
  return units[unit].empty() ? number : fmt::format("{} {}", number, units[unit]);
}

}  // namespace

std::string count_text(double value) {
  static constexpr std::string_view kUnits[] = {"", "k", "M", "G", "T"};
  return scaled_text(value, kUnits);
}

std::string bytes_text(double bytes) {
  static constexpr std::string_view kUnits[] = {"B", "KB", "MB", "GB", "TB"};
  return scaled_text(bytes, kUnits);
}

std::string percent_text(double share) { return fmt::format("{:.1f} %", 100.0 * share); }

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return std::string(kNothing);
  const auto total = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  const int64_t minutes = total / 60, hours = total / 3600;
  if (total < 60) return fmt::format("{} s", total);
  if (hours < 1) return fmt::format("{} min {:02} s", minutes, total % 60);
  if (hours < 48) return fmt::format("{} h {:02} min", hours, minutes % 60);
  return fmt::format("{} d {:02} h", hours / 24, hours % 24);
}

std::string fixed_text(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : std::string(kNothing);
}

std::string spread_text(const Spread& spread, int digits) {
  if (!std::isfinite(spread.standard_deviation)) return fixed_text(spread.mean, digits);
  return fmt::format("{:.{}f} ± {:.{}f}", spread.mean, digits, spread.standard_deviation, digits);
}

std::string difference_text(const VariantSummary& summary, int digits) {
  if (summary.verdict == Verdict::reference || !std::isfinite(summary.difference))
    return std::string(kNothing);
  return fmt::format("{:+.{}f}", summary.difference, digits);
}

std::string interval_text(const VariantSummary& summary, int digits) {
  const auto [low, high] = summary.difference_interval;
  if (!std::isfinite(low) || !std::isfinite(high)) return std::string(kNothing);
  return fmt::format("{:+.{}f} to {:+.{}f}", low, digits, high, digits);
}

std::string p_text(double p) {
  if (!std::isfinite(p)) return std::string(kNothing);
  return p < 0.001 ? "< 0.001" : fmt::format("{:.3f}", p);
}

std::string pairs_needed_text(const VariantSummary& summary) {
  constexpr int64_t kMost = 999;  // more is out of reach, and the estimate is not so exact
  if (!summary.pairs_needed) return std::string(kNothing);
  return *summary.pairs_needed > kMost ? fmt::format("over {}", kMost)
                                       : fmt::format("{}", *summary.pairs_needed);
}

std::string budget_text(const CompareResult& result) {
  switch (result.budget) {
    case BudgetKind::tokens:
      return count_text(result.budget_amount) + " tokens each";
    case BudgetKind::time:
      return duration_text(result.budget_amount) + " each";
    case BudgetKind::parameters:
      return count_text(result.budget_amount) + " parameters each";
  }
  return "";
}

std::vector<std::string> task_columns() {
  return {"task", "variant", "score", "difference", "p (Holm)", "questions"};
}

std::vector<std::string> task_cells(const TaskRow& row) {
  const PairedTest& test = row.difference;
  std::string difference;
  if (test.pairs > 0) difference = fmt::format("{:+.3f}", test.mean);
  if (std::isfinite(test.error)) difference += fmt::format(" ± {:.3f}", test.error);
  return {fmt::format("{}, {}", row.task, row.metric),
          row.variant,
          spread_text(row.score, 3),
          difference,
          p_text(row.corrected_p),
          std::to_string(row.items)};
}

std::string side_by_side_sentence(const CompareResult& result) {
  if (result.workers <= 1) return "";
  std::string text = fmt::format("{} runs trained at a time", result.workers);
  const SpeedsAlone& alone = result.speeds_alone;
  if (alone.seconds > 0)
    text += fmt::format(
        "; tokens/s: each variant alone with {} thread{} after all runs, the fastest quarter of a "
        "second of {:.0f}",
        alone.threads, alone.threads == 1 ? "" : "s", alone.seconds);
  return text + ".";
}

std::string origin_sentence(const CompareResult& result) {
  std::string text;
  for (const RunOrigin& origin : result.origins) {
    const bool all = origin.variants.size() == result.variants.size();
    text +=
        fmt::format("{}seeds {}{}{}: {} ({}), fovea {}, {}", text.empty() ? "Taken: " : "; ",
                    fmt::join(origin.seeds, ", "), all ? "" : " of ",
                    all ? "" : fmt::to_string(fmt::join(origin.variants, ", ")), origin.machine.cpu,
                    origin.machine.isa, origin.code_version, origin.created.substr(0, 10));
  }
  return text.empty() ? "" : text + ".";
}

std::vector<std::string> tuning_sentences(const CompareResult& result) {
  std::vector<std::string> sentences;
  for (size_t i = 0; i < result.tuning.size(); ++i) {
    const TuningPoint& point = result.tuning[i];
    if (!point.chosen) continue;
    std::vector<std::string> tried;
    bool first = true, last = true;
    for (size_t k = 0; k < result.tuning.size(); ++k) {
      if (result.tuning[k].variant != point.variant) continue;
      tried.push_back(fmt::format("{} ({})", result.tuning[k].value,
                                  fixed_text(result.tuning[k].bits_per_byte, 3)));
      first = first && k >= i;
      last = last && k <= i;
    }
    sentences.push_back(fmt::format("{}: {} {} of {}, by seed {}, which does not count{}.",
                                    point.variant, result.tuned_key, point.value,
                                    fmt::join(tried, ", "), result.tuning_seed,
                                    first || last ? "; it is at the edge of what was tried" : ""));
  }
  return sentences;
}

}  // namespace fovea
