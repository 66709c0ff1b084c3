// Means, spreads and verdicts of a comparison.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include "fovea/report/compare_result.h"
#include "fovea/report/spread.h"

namespace fovea {
namespace {

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

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

Verdict judge(const std::vector<double>& differences, double mean, double error) {
  if (differences.empty()) return Verdict::incomplete;
  if (differences.size() == 1) return Verdict::one_seed;
  const bool clear = std::abs(mean) > 2 * error;
  const auto below = [](double d) { return d < 0; };
  const auto above = [](double d) { return d > 0; };
  if (clear && std::all_of(differences.begin(), differences.end(), below)) return Verdict::better;
  if (clear && std::all_of(differences.begin(), differences.end(), above)) return Verdict::worse;
  return Verdict::inside_spread;
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
  const std::vector<double> differences = paired_differences(variant, *reference);
  summary.pairs = static_cast<int64_t>(differences.size());
  if (!differences.empty()) summary.difference = mean_of(differences);
  summary.difference_error =
      deviation_of(differences) / std::sqrt(static_cast<double>(differences.size()));
  summary.verdict = &variant == reference
                        ? Verdict::reference
                        : judge(differences, summary.difference, summary.difference_error);
  return summary;
}

}  // namespace

double deviation_of(const std::vector<double>& values) {
  if (values.size() < 2) return kNotANumber;
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
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
}

}  // namespace fovea
