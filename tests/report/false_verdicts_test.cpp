// How often a comparison of equal variants holds a verdict. Spec E-7.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "fovea/base/rng.h"
#include "fovea/report/compare_result.h"

namespace fovea::false_verdicts_test {
namespace {

/// Bits per byte of a variant: what the seed does to every variant, and noise of its own.
CompareVariant simulated(const std::string& name, const std::vector<double>& of_seed, double mean,
                         Rng& rng) {
  CompareVariant variant{.name = name};
  for (size_t seed = 0; seed < of_seed.size(); ++seed) {
    variant.runs.push_back(
        {.seed = static_cast<int64_t>(seed),
         .validation_bits_per_byte = mean + of_seed[seed] + 0.01 * rng.normal()});
  }
  return variant;
}

/// The share of comparisons in which a variant other than the first has the verdict `better` or
/// `worse`; the means are those of the variants after the reference.
struct Rates {
  double any = 0;
  double last = 0;  // of the last variant alone
};
Rates verdict_rates(size_t seeds, const std::vector<double>& means, int comparisons) {
  Rng rng(100 * seeds + means.size());
  Rates rates;
  for (int n = 0; n < comparisons; ++n) {
    std::vector<double> of_seed(seeds);
    for (double& effect : of_seed) effect = 0.05 * rng.normal();
    CompareResult result{.reference = "reference"};
    result.variants.push_back(simulated("reference", of_seed, 2, rng));
    for (size_t v = 0; v < means.size(); ++v)
      result.variants.push_back(simulated(std::to_string(v), of_seed, 2 + means[v], rng));
    summarise(result);
    const auto decided = [](const CompareVariant& variant) {
      const Verdict verdict = variant.summary.verdict;
      return verdict == Verdict::better || verdict == Verdict::worse;
    };
    rates.any += std::any_of(result.variants.begin(), result.variants.end(), decided);
    rates.last += decided(result.variants.back());
  }
  return {rates.any / comparisons, rates.last / comparisons};
}

TEST(FalseVerdicts, AtMostFivePercentOfComparisonsOfEqualVariantsHoldOne) {
  constexpr int kComparisons = 4000;
  const double deviation = std::sqrt(0.05 * 0.95 / kComparisons);
  for (const size_t seeds : {3U, 5U}) {
    for (const size_t variants : {1U, 3U, 7U}) {
      const double rate =
          verdict_rates(seeds, std::vector<double>(variants, 0.0), kComparisons).any;
      EXPECT_LE(rate, 0.05 + 3 * deviation) << seeds << " seeds, " << variants << " variants";
      // One test has exactly its level; a rule that never decides would pass the bound above.
      if (variants == 1) {
        EXPECT_GE(rate, 0.05 - 3 * deviation) << seeds << " seeds";
      }
    }
  }
}

TEST(FalseVerdicts, AVariantThatDiffersIsFoundAndTheEqualOnesStayRare) {
  // 0.03 bits per byte are 2.1 deviations of a paired difference, sqrt(2) * 0.01.
  const Rates found = verdict_rates(5, {0, 0, 0.03}, 1000);
  const double power = power_of_test(5, 0.03, 0.01 * std::sqrt(2.0), kSignificance / 3);
  EXPECT_GE(found.last, power - 3 * std::sqrt(0.25 / 1000));
  EXPECT_LE(found.last, power_of_test(5, 0.03, 0.01 * std::sqrt(2.0)));
}

}  // namespace
}  // namespace fovea::false_verdicts_test
