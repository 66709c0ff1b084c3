// The answer of a comparison in words.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "fovea/report/format.h"
#include "fovea/report/series.h"

namespace fovea {
namespace {

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

/// Variants that the equivalence test found as good as the reference.
void add_equivalent_findings(const CompareResult& result, const std::string& reference,
                             Answer& answer) {
  for (const CompareVariant& variant : result.variants) {
    const VariantSummary& summary = variant.summary;
    if (summary.verdict != Verdict::equivalent) continue;
    answer.findings.push_back(
        {Finding::Kind::same,
         fmt::format("{} is as good as {} within {} bits per byte: a difference of {} over {} "
                     "seeds (equivalence test, corrected p {}).",
                     single_line(variant.name), reference, result.equivalence_margin,
                     difference_text(summary, 4), summary.pairs, p_text(summary.equivalence_p))});
  }
}

/// Decided differences that shrink while training goes on: what helps at the start may end.
void add_shrinking_findings(const CompareResult& result, const std::string& reference,
                            Answer& answer) {
  constexpr double kShrunk = 0.8;  // of the difference at half of the training
  for (const Band& band : difference_bands(result, progress_axis(result))) {
    const CompareVariant& variant = result.variants[band.variant];
    const Verdict verdict = variant.summary.verdict;
    if ((verdict != Verdict::better && verdict != Verdict::worse) || band.x.size() < 2) continue;
    const double half = Line{band.x, band.mean}.at(band.x.back() / 2), end = band.mean.back();
    if (half * end < 0 || std::abs(end) >= kShrunk * std::abs(half)) continue;
    answer.findings.push_back(
        {Finding::Kind::open,
         fmt::format("The difference of {} to {} shrinks: {:+.4f} bits per byte at half of the "
                     "training, {:+.4f} at its end. It is an effect of the first steps, and longer "
                     "training may undo it.",
                     single_line(variant.name), reference, half, end)});
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
    add_equivalent_findings(result, name, answer);
    add_shrinking_findings(result, name, answer);
    add_open_findings(result, name, answer);
  }
  if (const std::string sentence = baseline_sentence(result); !sentence.empty()) {
    answer.findings.push_back({Finding::Kind::baseline, sentence});
  }
  return answer;
}

std::string verdict_rule(double equivalence_margin) {
  std::string rule =
      "Verdicts compare seed by seed with the reference (same data order): better or worse where a "
      "paired t-test has p < 0.05, corrected for the number of variants by Holm's method; ";
  if (equivalence_margin > 0) {
    rule += fmt::format(
        "as good where two one-sided t-tests (TOST, Holm) place the difference within the stated "
        "margin of {} bits per byte; ",
        equivalence_margin);
  }
  return rule +
         "otherwise the difference is inside the spread, which is no sign of equality. Seeds "
         "needed: this many would find the difference in four of five comparisons, if it is what "
         "it "
         "seems. The interval covers 95 % for one variant alone; ± is one standard deviation over "
         "seeds.";
}

}  // namespace fovea
