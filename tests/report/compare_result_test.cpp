// compare.json and the verdicts.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/compare_result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/report/format.h"
#include "fovea/report/table.h"
#include "tests/report/example_result.h"

namespace fovea::compare_result_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

CompareVariant variant_of(const std::string& name, const std::vector<double>& bits_by_seed) {
  CompareVariant variant{.name = name};
  int64_t seed = 0;
  for (const double bits : bits_by_seed) {
    variant.runs.push_back(
        {.seed = ++seed, .validation_bits_per_byte = bits, .validation_perplexity = 2 * bits});
  }
  return variant;
}

VariantSummary judged(const std::vector<double>& reference, const std::vector<double>& other) {
  CompareResult result;
  result.reference = "reference";
  result.variants = {variant_of("reference", reference), variant_of("other", other)};
  summarise(result);
  return result.variants[1].summary;
}

std::string error_of(const Json& document) {
  try {
    compare_result_from_json(document);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CompareResult, ReadingWhatWasWrittenGivesTheSameDocument) {
  const Json document = to_json(testing::example_result());
  EXPECT_EQ(to_json(compare_result_from_json(document)), document);
  EXPECT_EQ(document["schema"], 1);
  EXPECT_EQ(document["variants"][1]["runs"].size(), 3u);
  EXPECT_EQ(document["variants"][2]["summary"]["verdict"], "inside the spread");
}

TEST(CompareResult, SaysHowManyRunsTrainedAtATimeAndHowSpeedsWereMeasured) {
  CompareResult result = testing::example_result();
  EXPECT_EQ(to_json(result).count("workers"), 0U);
  EXPECT_EQ(side_by_side_sentence(result), "");
  result.workers = 2;
  result.speeds_alone = {.seconds = 2, .threads = 1};
  const CompareResult read = compare_result_from_json(to_json(result));
  const std::string sentence =
      "2 runs trained at a time; tokens/s: each variant alone with 1 thread after all runs, the "
      "fastest quarter of a second of 2.";
  EXPECT_EQ(side_by_side_sentence(read), sentence);
  EXPECT_THAT(compare_table(read, 0), HasSubstr("2 runs trained at a time"));  // it is wrapped
}

TEST(CompareResult, AFileHoldsTextsThatAreNoUtf8AndNumbersThatAreNone) {
  const auto path =
      std::filesystem::temp_directory_path() / fmt::format("fovea-compare-{}.json", ::getpid());
  CompareResult result = testing::hostile_result();
  result.variants[0].runs[0].curve[0].train_loss = kNotANumber;
  result.variants[0].runs[0].curve[1].train_loss = std::numeric_limits<double>::infinity();
  save_compare_result(result, path);
  const CompareResult again = load_compare_result(path);
  std::filesystem::remove(path);
  EXPECT_TRUE(std::isnan(again.variants[0].runs[0].curve[0].train_loss));
  EXPECT_TRUE(std::isnan(again.variants[0].runs[0].curve[1].train_loss));
  EXPECT_THAT(again.variants[2].name, HasSubstr("\xEF\xBF\xBD"));
  EXPECT_EQ(again.variants[1].name, result.variants[1].name);
}

TEST(CompareResult, AnotherSchemaVersionIsRefused) {
  Json document = to_json(testing::example_result());
  document["schema"] = 2;
  EXPECT_THAT(error_of(document), HasSubstr("expected schema version 1; got 2"));
  document.erase("schema");
  EXPECT_THAT(error_of(document), HasSubstr("no file of `fovea compare`"));
}

TEST(CompareResult, AnErrorNamesThePlaceInTheDocument) {
  const Json good = to_json(testing::example_result());
  Json document = good;
  document["variants"][1]["runs"][2]["seed"] = "three";
  EXPECT_THAT(error_of(document),
              HasSubstr("'variants[1].runs[2].seed' to be an integer; got string"));
  document = good;
  document["variants"][0].erase("parameters");
  EXPECT_THAT(error_of(document), HasSubstr("'variants[0].parameters'; it is missing"));
  document = good;
  document["budget"] = "energy";
  EXPECT_THAT(error_of(document),
              HasSubstr("'budget' to be one of: tokens, time, parameters; got 'energy'"));
  document = good;
  document["variants"][0]["attention_maps"][0]["rows"][4].push_back(0.5);
  EXPECT_THAT(error_of(document), HasSubstr("variants[0].attention_maps[0].rows[4]"));
}

TEST(CompareResult, NamesAndSeedsMustDifferAndTheReferenceMustExist) {
  const Json good = to_json(testing::example_result());
  Json document = good;
  document["variants"][1]["name"] = "standard";
  EXPECT_THAT(error_of(document), HasSubstr("repeats 'standard'"));
  document = good;
  document["variants"][1]["runs"][1]["seed"] = 1;
  EXPECT_THAT(error_of(document), HasSubstr("seed 1 occurs twice"));
  document = good;
  document["reference"] = "nobody";
  EXPECT_THAT(error_of(document), HasSubstr("got 'nobody'"));
}

TEST(CompareResult, UnknownKeysAreIgnoredSoThatVersionOneCanGrow) {
  Json document = to_json(testing::example_result());
  document["variants"][0]["something_new"] = {1, 2};
  EXPECT_EQ(error_of(document), "no error");
}

TEST(CompareResult, VerdictsOfAnOlderRuleAreComputedAnew) {
  Json document = to_json(testing::example_result());
  EXPECT_THAT(document["verdict_rule"].get<std::string>(), HasSubstr("Holm"));
  EXPECT_TRUE(document["variants"][0]["summary"]["p"].is_null());
  Json& summary = document["variants"][2]["summary"];
  EXPECT_EQ(summary["verdict"], "inside the spread");
  EXPECT_EQ(summary["pairs_needed"], 108);
  summary = {{"verdict", "better"}, {"pairs", 3}};
  const CompareResult again = compare_result_from_json(document);
  EXPECT_EQ(again.variants[2].summary.verdict, Verdict::inside_spread);
  EXPECT_EQ(again.variants[2].summary.pairs_needed, 108);
}

TEST(CompareResult, TextThatIsNoJsonIsAnInputError) {
  const auto path =
      std::filesystem::temp_directory_path() / fmt::format("fovea-broken-{}.json", ::getpid());
  write_file(path, "{\"schema\": 1,");
  EXPECT_THROW(load_compare_result(path), InputError);
  std::filesystem::remove(path);
}

TEST(Summarise, MeanSpreadAndDifferenceAreThoseOfTheSeeds) {
  const VariantSummary summary = judged({2.0, 2.2, 2.4}, {1.9, 2.0, 2.4});
  EXPECT_DOUBLE_EQ(summary.bits_per_byte.mean, 2.1);
  EXPECT_DOUBLE_EQ(summary.bits_per_byte.min, 1.9);
  EXPECT_DOUBLE_EQ(summary.bits_per_byte.max, 2.4);
  EXPECT_NEAR(summary.bits_per_byte.standard_deviation, std::sqrt(0.07), 1e-12);
  EXPECT_DOUBLE_EQ(summary.perplexity.mean, 4.2);
  EXPECT_NEAR(summary.difference, -0.1, 1e-12);
  EXPECT_NEAR(summary.difference_error, 0.1 / std::sqrt(3.0), 1e-12);
}

TEST(Summarise, APBelowFivePercentMakesAVerdictOfTheSignOfTheMean) {
  EXPECT_EQ(judged({2.0, 3.0, 4.0}, {1.9, 2.9, 3.91}).verdict, Verdict::better);
  EXPECT_EQ(judged({2.0, 3.0, 4.0}, {2.1, 3.1, 4.09}).verdict, Verdict::worse);
  EXPECT_EQ(judged({2.0, 2.0}, {2.0, 2.0}).verdict, Verdict::inside_spread);
}

TEST(Summarise, ThreeSeedsOfOneSignBeyondTwoStandardErrorsAreNotEnough) {
  const VariantSummary summary = judged({2.0, 2.0, 2.0}, {1.9, 1.95, 1.98});
  EXPECT_GT(std::abs(summary.difference), 2 * summary.difference_error);
  EXPECT_GT(summary.p, 0.05);
  EXPECT_EQ(summary.verdict, Verdict::inside_spread);
  EXPECT_LT(summary.difference_interval.low, summary.difference);
  EXPECT_GT(summary.difference_interval.high, 0);
  EXPECT_GT(summary.pairs_needed.value(), 3);
}

TEST(Summarise, MoreVariantsNeedASmallerP) {
  // p = 0.018 alone: of three such variants Holm's method asks for 0.05 / 3.
  const std::vector<double> other = {1.9, 1.92, 1.94};
  const VariantSummary alone = judged({2.0, 2.0, 2.0}, other);
  EXPECT_EQ(alone.verdict, Verdict::better);
  CompareResult result;
  result.reference = "reference";
  result.variants = {variant_of("reference", {2.0, 2.0, 2.0}), variant_of("a", other),
                     variant_of("b", {2.01, 1.99, 2.0}), variant_of("c", {2.0, 2.02, 1.99})};
  summarise(result);
  EXPECT_EQ(result.variants[1].summary.p, alone.p);
  EXPECT_DOUBLE_EQ(result.variants[1].summary.corrected_p, 3 * alone.p);
  EXPECT_EQ(result.variants[1].summary.verdict, Verdict::inside_spread);
  EXPECT_GT(result.variants[1].summary.pairs_needed, alone.pairs_needed);
  EXPECT_TRUE(std::isnan(result.variants[0].summary.p));
}

TEST(Summarise, AVariantWithOneSeedIsNotCountedAmongTheTests) {
  CompareResult result;
  result.reference = "reference";
  result.variants = {variant_of("reference", {2.0, 2.0, 2.0}), variant_of("a", {1.9, 1.92, 1.94}),
                     variant_of("b", {1.0})};
  summarise(result);
  EXPECT_EQ(result.variants[1].summary.corrected_p, result.variants[1].summary.p);
  EXPECT_EQ(result.variants[2].summary.verdict, Verdict::one_seed);
}

TEST(Summarise, OneSeedAllowsNoVerdict) {
  const VariantSummary summary = judged({2.0}, {1.0});
  EXPECT_EQ(summary.verdict, Verdict::one_seed);
  EXPECT_DOUBLE_EQ(summary.difference, -1.0);
  EXPECT_TRUE(std::isnan(summary.bits_per_byte.standard_deviation));
}

TEST(Summarise, OnlyFinishedSeedsThatBothHaveArePaired) {
  CompareResult result;
  result.reference = "reference";
  result.variants = {variant_of("reference", {2.0, 2.1, 2.2}),
                     variant_of("other", {1.9, 2.0, 2.1})};
  result.variants[0].runs[0].failure = "the loss is not a number";
  result.variants[1].runs[2].seed = 9;
  summarise(result);
  EXPECT_EQ(result.variants[1].summary.pairs, 1);
  EXPECT_EQ(result.variants[1].summary.finished_runs, 3);
  EXPECT_EQ(result.variants[0].summary.finished_runs, 2);
  EXPECT_EQ(result.variants[0].summary.verdict, Verdict::reference);
  result.variants[1].runs.clear();
  summarise(result);
  EXPECT_EQ(result.variants[1].summary.verdict, Verdict::incomplete);
}

TEST(Summarise, SpeedIsTheMedianAndMemoryTheLargest) {
  CompareResult result;
  result.reference = "a";
  result.variants = {variant_of("a", {1, 1, 1, 1})};
  const double speeds[] = {100, 900, 300, 200};
  for (size_t i = 0; i < 4; ++i) {
    result.variants[0].runs[i].tokens_per_second = speeds[i];
    result.variants[0].runs[i].peak_memory_bytes = static_cast<int64_t>(speeds[i]);
  }
  summarise(result);
  EXPECT_DOUBLE_EQ(result.variants[0].summary.tokens_per_second, 250);
  EXPECT_EQ(result.variants[0].summary.peak_memory_bytes, 900);
}

}  // namespace
}  // namespace fovea::compare_result_test
