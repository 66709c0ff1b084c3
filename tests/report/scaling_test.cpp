// Scaling curves and shares at equal loss, on losses that follow known laws.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/scaling.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "fovea/report/format.h"
#include "fovea/report/html_report.h"

namespace fovea::scaling_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Law = std::function<double(double parameters, double tokens)>;

/// Variants "family+parameters+tokens" of two seeds; the second seed's loss is 2 % higher.
void add_family(CompareResult& result, const std::string& name,
                const std::vector<int64_t>& parameters, const std::vector<int64_t>& tokens,
                const Law& law) {
  for (const int64_t p : parameters) {
    for (const int64_t t : tokens) {
      CompareVariant variant{
          .name = fmt::format("{}+{}+{}", name, p, t), .family = name, .parameters = p};
      for (const int64_t seed : {0, 1}) {
        const double bits = law(static_cast<double>(p), static_cast<double>(t)) *
                            (1 + 0.02 * static_cast<double>(seed));
        variant.runs.push_back({.seed = seed, .validation_bits_per_byte = bits, .tokens = t});
      }
      result.variants.push_back(std::move(variant));
    }
  }
  if (result.reference.empty()) result.reference = result.variants.front().name;
}

double power(double x, double exponent) { return 40 * std::pow(x, -exponent); }

TEST(Scaling, AFamilyThatNeedsSixTenthsOfTheParametersIsFoundToNeedThem) {
  CompareResult result;
  add_family(result, "standard", {1000, 2000, 4000}, {500},
             [](double p, double) { return power(p, 0.2); });
  add_family(result, "focal", {1000, 2000, 4000}, {500},
             [](double p, double) { return power(p / 0.6, 0.2); });
  const auto studies = scaling_studies(result);
  ASSERT_EQ(studies.size(), 1u);
  EXPECT_EQ(studies[0].axis, ScalingAxis::parameters);
  ASSERT_EQ(studies[0].iso_loss.size(), 3u);
  // The smallest reference point is reached below the smallest focal model: only a bound.
  EXPECT_EQ(studies[0].iso_loss[0].bound, IsoLoss::Bound::at_most);
  EXPECT_DOUBLE_EQ(studies[0].iso_loss[0].ratio.mean, 1);
  for (const size_t i : {1, 2}) {
    EXPECT_EQ(studies[0].iso_loss[i].bound, IsoLoss::Bound::none);
    EXPECT_NEAR(studies[0].iso_loss[i].ratio.mean, 0.6, 1e-9);
    EXPECT_EQ(studies[0].iso_loss[i].seeds, 2);
  }
  EXPECT_THAT(scaling_sentences(studies[0]),
              ::testing::ElementsAre(HasSubstr(
                  "focal reaches the loss of standard with 0.60 ± 0.00 of the parameters")));
}

TEST(Scaling, ExponentsOfPowerLawsComeOutWithTheirError) {
  CompareResult result;
  add_family(result, "standard", {1000, 2000, 4000}, {500},
             [](double p, double) { return power(p, 0.2); });
  const auto studies = scaling_studies(result);
  ASSERT_EQ(studies.size(), 1u);
  const PowerLaw fit = studies[0].curves[0].fit;
  EXPECT_NEAR(fit.exponent, 0.2, 1e-9);
  // Six points; the two seeds stand log(1.02)/2 to each side of the law.
  const double rest = 6 * std::pow(std::log(1.02) / 2, 2), xx = 4 * std::pow(std::log(2.0), 2);
  EXPECT_NEAR(fit.exponent_error, std::sqrt(rest / 4 / xx), 1e-9);
}

TEST(Scaling, AWorseFamilyGetsABoundAndNoExtrapolation) {
  CompareResult result;
  add_family(result, "standard", {1000, 2000}, {500},
             [](double p, double) { return power(p, 0.2); });
  add_family(result, "worse", {1000, 2000}, {500},
             [](double p, double) { return power(p / 1.5, 0.2); });
  const auto study = scaling_studies(result).at(0);
  EXPECT_NEAR(study.iso_loss[0].ratio.mean, 1.5, 1e-9);
  EXPECT_EQ(study.iso_loss[1].bound, IsoLoss::Bound::more_than);
  EXPECT_DOUBLE_EQ(study.iso_loss[1].ratio.mean, 1);
  EXPECT_THAT(scaling_sentences(study)[0], HasSubstr("with more than 1.00 of the parameters"));
  EXPECT_TRUE(std::isnan(study.curves[0].fit.exponent)) << "two sizes are no law";
}

TEST(Scaling, AGridGivesBothAxesEachAtTheLargestOfTheOther) {
  CompareResult result;
  const Law law = [](double p, double t) { return power(p, 0.1) + power(t, 0.3); };
  add_family(result, "standard", {1000, 4000}, {500, 1000, 2000}, law);
  add_family(result, "half", {1000, 4000}, {500, 1000, 2000},
             [&](double p, double t) { return law(p, 2 * t); });
  const auto studies = scaling_studies(result);
  ASSERT_EQ(studies.size(), 2u);
  EXPECT_EQ(studies[0].curves[0].seeds[0].line.x, (std::vector<double>{1000, 4000}));
  EXPECT_NEAR(studies[0].curves[0].seeds[0].line.y[0], law(1000, 2000), 1e-12);
  EXPECT_EQ(studies[1].axis, ScalingAxis::tokens);
  EXPECT_NEAR(studies[1].curves[0].seeds[0].line.y[0], law(4000, 500), 1e-12);
  EXPECT_NEAR(studies[1].iso_loss.back().ratio.mean, 0.5, 1e-9);
}

TEST(Scaling, WithoutASweepTheValidationCurvesAreAsked) {
  CompareResult result{.reference = "standard"};
  for (const double speed : {1.0, 1.25}) {
    CompareVariant variant{.name = speed == 1 ? "standard" : "faster"};
    CompareRun run{.seed = 0, .validation_bits_per_byte = power(4000 * speed, 0.3), .tokens = 4000};
    for (const int64_t tokens : {1000, 2000, 3000, 4000}) {
      run.validation_curve.push_back(
          {.tokens = tokens, .bits_per_byte = power(static_cast<double>(tokens) * speed, 0.3)});
    }
    variant.runs.push_back(run);
    result.variants.push_back(variant);
  }
  const auto studies = scaling_studies(result);
  ASSERT_EQ(studies.size(), 1u);
  EXPECT_TRUE(studies[0].within_runs);
  ASSERT_EQ(studies[0].iso_loss.size(), 1u);
  EXPECT_NEAR(studies[0].iso_loss[0].ratio.mean, 0.8, 1e-9);
}

TEST(Scaling, NothingIsClaimedOfASingleModel) {
  CompareResult result{.reference = "standard"};
  result.variants.push_back({.name = "standard"});
  EXPECT_TRUE(scaling_studies(result).empty());
  EXPECT_TRUE(scaling_json({}).empty());
}

TEST(Scaling, TheFileAndThePageTellOfIt) {
  CompareResult result{.title = "sizes"};
  add_family(result, "standard", {1000, 2000, 4000}, {500},
             [](double p, double) { return power(p, 0.2); });
  add_family(result, "focal", {1000, 2000, 4000}, {500},
             [](double p, double) { return power(p / 0.6, 0.2); });
  summarise(result);
  const auto document = to_json(result);
  const auto& ratios = document["scaling"][0]["iso_loss_parameters_ratio"];
  EXPECT_NEAR(ratios[2]["ratio"].get<double>(), 0.6, 1e-9);
  EXPECT_EQ(to_json(compare_result_from_json(document)), document);
  const std::string page = html_report(result, {});
  EXPECT_THAT(page, HasSubstr("With more parameters"));
  EXPECT_THAT(page, HasSubstr("focal reaches the loss of standard"));
  EXPECT_THAT(page, HasSubstr("-0.200 ± "));
  EXPECT_THAT(page, Not(HasSubstr("With more tokens")));
}

}  // namespace
}  // namespace fovea::scaling_test
