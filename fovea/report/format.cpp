// Units, spreads, and the answer of a comparison in words.
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

/// "a", "a and b", "a, b and c".
std::string join_names(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " and " : ", ";
    out += names[i];
  }
  return out;
}

std::vector<std::string> names_with(const CompareResult& result, Verdict verdict) {
  std::vector<std::string> names;
  for (const CompareVariant& variant : result.variants) {
    if (variant.summary.verdict == verdict) names.push_back(single_line(variant.name));
  }
  return names;
}

/// One sentence on the spread between seeds and variants against the baselines.
std::string baseline_sentence(const CompareResult& result) {
  double worst = -INFINITY;
  for (const CompareVariant& variant : result.variants) {
    if (variant.summary.finished_runs > 0)
      worst = std::max(worst, variant.summary.bits_per_byte.max);
  }
  if (!std::isfinite(worst)) return "";
  std::vector<std::string> below, above;
  for (const CompareBaseline& baseline : result.baselines) {
    const std::string name =
        fmt::format("{} ({:.3f})", single_line(baseline.name), baseline.bits_per_byte);
    (worst < baseline.bits_per_byte ? below : above).push_back(name);
  }
  std::string out;
  if (!below.empty())
    out += fmt::format("Every run predicts better than the baseline {}. ", join_names(below));
  if (!above.empty()) {
    out += fmt::format("Not every run reaches the baseline {}: read the differences with care. ",
                       join_names(above));
  }
  if (!out.empty()) out.pop_back();
  return out;
}

/// Variants with a clear verdict, each with its numbers.
void add_clear_findings(const CompareResult& result, const std::string& reference, Answer& answer) {
  for (const Verdict verdict : {Verdict::better, Verdict::worse}) {
    for (const CompareVariant& variant : result.variants) {
      const VariantSummary& summary = variant.summary;
      if (summary.verdict != verdict) continue;
      const auto kind = verdict == Verdict::better ? Finding::Kind::better : Finding::Kind::worse;
      answer.findings.push_back(
          {kind,
           fmt::format("{} is {} than {}: {} bits per byte against {}, a difference of {} over {} "
                       "seeds (95 % interval {}, corrected p {}).",
                       single_line(variant.name), verdict_text(verdict), reference,
                       fixed_text(summary.bits_per_byte.mean, 3),
                       fixed_text(result.reference_variant()->summary.bits_per_byte.mean, 3),
                       difference_text(summary, 4), summary.pairs, interval_text(summary, 4),
                       p_text(summary.corrected_p))});
    }
  }
}

/// How many seeds would settle the variants inside the spread: "12 (focal) and over 999 (sharp)".
std::string seeds_sentence(const CompareResult& result) {
  std::vector<std::string> parts;
  for (const CompareVariant& variant : result.variants) {
    const VariantSummary& summary = variant.summary;
    if (summary.verdict != Verdict::inside_spread || !summary.pairs_needed) continue;
    parts.push_back(fmt::format("{} ({})", pairs_needed_text(summary), single_line(variant.name)));
  }
  if (parts.empty()) return "";
  return fmt::format(
      " If the differences are what they seem, this many seeds find them in four of "
      "five comparisons: {}.",
      join_names(parts));
}

void add_open_findings(const CompareResult& result, const std::string& reference, Answer& answer) {
  const auto verb = [](const auto& names) { return names.size() == 1 ? "is" : "are"; };
  const auto open = Finding::Kind::open;
  if (const auto names = names_with(result, Verdict::inside_spread); !names.empty()) {
    answer.findings.push_back(
        {open,
         fmt::format("{} {} inside the spread between seeds: no difference from {} can be claimed.",
                     join_names(names), verb(names), reference) +
             seeds_sentence(result)});
  }
  if (const auto names = names_with(result, Verdict::one_seed); !names.empty()) {
    answer.findings.push_back(
        {open,
         fmt::format(
             "{} {} measured with one seed only, which allows no verdict; add seeds to get one.",
             join_names(names), verb(names))});
  }
  auto missing = names_with(result, Verdict::incomplete);
  std::erase(missing, reference);
  if (!missing.empty()) {
    answer.findings.push_back(
        {open, fmt::format("{} {} no finished run to compare with {}.", join_names(missing),
                           missing.size() == 1 ? "has" : "have", reference)});
  }
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

Answer compare_answer(const CompareResult& result) {
  Answer answer;
  size_t most_runs = 0;
  for (const CompareVariant& variant : result.variants)
    most_runs = std::max(most_runs, variant.runs.size());
  answer.question =
      fmt::format("{} {} on the same data in the same order, {} {}, {}.", result.variants.size(),
                  result.variants.size() == 1 ? "variant" : "variants", most_runs,
                  most_runs == 1 ? "seed" : "seeds", budget_text(result));
  const CompareVariant* reference = result.reference_variant();
  if (reference == nullptr || reference->summary.finished_runs == 0) {
    answer.findings.push_back(
        {Finding::Kind::open,
         "The reference has no finished run yet, so there is nothing to compare with."});
  } else {
    const std::string name = single_line(reference->name);
    add_clear_findings(result, name, answer);
    add_open_findings(result, name, answer);
  }
  if (const std::string sentence = baseline_sentence(result); !sentence.empty()) {
    answer.findings.push_back({Finding::Kind::baseline, sentence});
  }
  return answer;
}

std::string_view verdict_rule() {
  return "Verdicts compare seed by seed with the reference (same data order): better or worse "
         "where a paired t-test has p < 0.05, corrected for the number of variants by Holm's "
         "method; otherwise the difference is inside the spread. Seeds needed: this many would "
         "find the difference in four of five comparisons, if it is what it seems. The interval "
         "covers 95 % for one variant alone; ± is one standard deviation over seeds.";
}

}  // namespace fovea
