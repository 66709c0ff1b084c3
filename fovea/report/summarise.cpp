// Means, spreads and verdicts of a comparison.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "fovea/report/compare_result.h"
#include "fovea/report/equivalence.h"
#include "fovea/report/spread.h"
#include "fovea/report/statistics.h"

namespace fovea {
namespace {

double median_of(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return kNotANumber;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Differences in bits per byte over the seeds that both have finished.
std::vector<double> paired_differences(const CompareVariant& variant,
                                       const CompareVariant& reference) {
  std::vector<double> differences;
  for (const CompareRun& run : variant.runs) {
    for (const CompareRun& other : reference.runs) {
      if (run.seed == other.seed && run.finished() && other.finished()) {
        differences.push_back(run.validation_bits_per_byte - other.validation_bits_per_byte);
      }
    }
  }
  return differences;
}

Verdict judge(const VariantSummary& summary) {
  if (summary.pairs == 0) return Verdict::incomplete;
  if (summary.pairs == 1) return Verdict::one_seed;
  if (summary.corrected_p < kSignificance)
    return summary.difference < 0 ? Verdict::better : Verdict::worse;
  return summary.equivalence_p < kSignificance ? Verdict::equivalent : Verdict::inside_spread;
}

VariantSummary summary_of(const CompareVariant& variant, const CompareVariant* reference) {
  std::vector<double> bits, perplexities, speeds;
  VariantSummary summary;
  for (const CompareRun& run : variant.runs) {
    if (!run.finished()) continue;
    ++summary.finished_runs;
    bits.push_back(run.validation_bits_per_byte);
    perplexities.push_back(run.validation_perplexity);
    speeds.push_back(run.tokens_per_second);
    summary.peak_memory_bytes = std::max(summary.peak_memory_bytes, run.peak_memory_bytes);
  }
  summary.bits_per_byte = spread_of(bits);
  summary.perplexity = spread_of(perplexities);
  summary.tokens_per_second = median_of(speeds);
  if (reference == nullptr) return summary;
  const PairedTest test = paired_t_test(paired_differences(variant, *reference));
  summary.pairs = test.pairs;
  summary.difference = test.mean;
  summary.difference_error = test.error;
  if (&variant == reference) return summary;
  summary.difference_interval = test.interval;
  summary.p = test.p;
  return summary;
}

/// Fills the p-values of the equivalence tests, which are a family of their own.
void test_equivalence(double margin, const std::vector<VariantSummary*>& tested) {
  if (!(margin > 0)) return;
  std::vector<double> p_values;
  for (const VariantSummary* summary : tested) {
    const PairedTest test{
        .pairs = summary->pairs, .mean = summary->difference, .error = summary->difference_error};
    p_values.push_back(equivalence_test(test, margin).p());
  }
  const std::vector<double> corrected = holm_corrected(p_values);
  for (size_t i = 0; i < tested.size(); ++i) tested[i]->equivalence_p = corrected[i];
}

/// Fills the corrected p-values, the sample sizes and the verdicts from the summaries.
void judge_together(CompareResult& result, const CompareVariant* reference) {
  std::vector<VariantSummary*> tested;
  std::vector<double> p_values;
  for (CompareVariant& variant : result.variants) {
    if (!std::isfinite(variant.summary.p)) continue;
    tested.push_back(&variant.summary);
    p_values.push_back(variant.summary.p);
  }
  const std::vector<double> corrected = holm_corrected(p_values);
  const double level = kSignificance / static_cast<double>(std::max<size_t>(1, tested.size()));
  for (size_t i = 0; i < tested.size(); ++i) {
    VariantSummary& summary = *tested[i];
    const double root = std::sqrt(static_cast<double>(summary.pairs));
    summary.corrected_p = corrected[i];
    summary.pairs_needed = pairs_needed(summary.difference, summary.difference_error * root, level);
  }
  test_equivalence(result.equivalence_margin, tested);
  for (CompareVariant& variant : result.variants) {
    variant.summary.verdict = &variant == reference ? Verdict::reference : judge(variant.summary);
  }
}

/// The last score of a run on a task; null where it has none.
const TaskPoint* last_score(const CompareRun& run, const std::string& task) {
  const TaskPoint* last = nullptr;
  for (const TaskPoint& point : run.tasks)
    if (point.task == task && (last == nullptr || point.step >= last->step)) last = &point;
  return last;
}

TaskRow task_row(const CompareVariant& variant, const CompareVariant* reference,
                 const std::string& task) {
  TaskRow row{.task = task, .variant = variant.name};
  std::vector<double> scores, differences;
  for (const CompareRun& run : variant.runs) {
    const TaskPoint* const score = last_score(run, task);
    if (score == nullptr || !std::isfinite(score->value)) continue;
    row.metric = score->metric;
    row.items = score->items;
    scores.push_back(score->value);
    if (reference == nullptr || reference == &variant) continue;
    for (const CompareRun& other : reference->runs) {
      const TaskPoint* const base = last_score(other, task);
      if (other.seed == run.seed && base != nullptr)
        differences.push_back(score->value - base->value);
    }
  }
  row.score = spread_of(scores);
  row.difference = paired_t_test(differences);
  return row;
}

}  // namespace

std::vector<TaskRow> task_rows(const CompareResult& result) {
  std::vector<std::string> tasks;  // in order of first appearance
  for (const CompareVariant& variant : result.variants)
    for (const CompareRun& run : variant.runs)
      for (const TaskPoint& point : run.tasks)
        if (std::ranges::find(tasks, point.task) == tasks.end()) tasks.push_back(point.task);
  std::vector<TaskRow> all;
  for (const std::string& task : tasks) {
    const size_t first = all.size();
    std::vector<double> p;
    for (const CompareVariant& variant : result.variants) {
      all.push_back(task_row(variant, result.reference_variant(), task));
      if (std::isfinite(all.back().difference.p)) p.push_back(all.back().difference.p);
    }
    const std::vector<double> corrected = holm_corrected(p);
    auto next = corrected.begin();
    for (size_t row = first; row < all.size(); ++row)
      if (std::isfinite(all[row].difference.p)) all[row].corrected_p = *next++;
  }
  return all;
}

Spread spread_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {.mean = mean_of(values),
          .min = *low,
          .max = *high,
          .standard_deviation = deviation_of(values)};
}

void summarise(CompareResult& result) {
  const CompareVariant* reference = result.reference_variant();
  for (CompareVariant& variant : result.variants) variant.summary = summary_of(variant, reference);
  judge_together(result, reference);
}

}  // namespace fovea
