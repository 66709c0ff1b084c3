// Claims, their evidence in each kind of result file, and the verdicts by rule.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "fovea/base/files.h"
#include "tests/support/expect_error.h"

namespace fovea::claims_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

/// A compare.json of one reference and variants that differ from it by `differences` by seed.
Json comparison(const std::vector<std::pair<std::string, std::vector<double>>>& variants) {
  Json file = {{"variants", Json::array()}};
  for (const auto& [name, differences] : variants) {
    Json runs = Json::array();
    for (size_t seed = 0; seed < differences.size(); ++seed) {
      runs.push_back({{"seed", seed},
                      {"validation_bits_per_byte", 2.0 + 0.1 * double(seed) + differences[seed]}});
    }
    file["variants"].push_back({{"name", name}, {"runs", runs}});
  }
  return file;
}

const std::vector<double> kZero{0, 0, 0}, kBetter{-0.30, -0.31, -0.29}, kWorse{0.30, 0.31, 0.29},
    kLevel{0.001, -0.001, 0.0005}, kWide{0.4, -0.5, 0.2};

class ClaimVerdicts : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("fovea-claims-{}", ::getpid());
    make_folders(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  ClaimVerdict verdict(ClaimRule rule, const std::vector<double>& differences,
                       const std::string& flaw = "") {
    write_file(folder_ / "result.json",
               comparison({{"standard", kZero}, {"new", differences}}).dump());
    Claim claim{.id = "x", .result = "result.json", .flaw = flaw, .rule = rule, .margin = 0.02};
    claim.measure.variant = "new";
    claim.measure.against = "standard";
    return decide({.seed = "s"}, claim, folder_).verdict;
  }

  std::filesystem::path folder_;
};

TEST_F(ClaimVerdicts, OfALowerValueNeedASignificantDifferenceOfThatSign) {
  EXPECT_EQ(verdict(ClaimRule::lower, kBetter), ClaimVerdict::reproduced);
  EXPECT_EQ(verdict(ClaimRule::lower, kWorse), ClaimVerdict::refuted);
  EXPECT_EQ(verdict(ClaimRule::lower, kLevel), ClaimVerdict::bounded);
  EXPECT_EQ(verdict(ClaimRule::lower, kWide), ClaimVerdict::undecided);
}

TEST_F(ClaimVerdicts, OfAHigherValueAreTheMirror) {
  EXPECT_EQ(verdict(ClaimRule::higher, kBetter), ClaimVerdict::refuted);
  EXPECT_EQ(verdict(ClaimRule::higher, kWorse), ClaimVerdict::reproduced);
  EXPECT_EQ(verdict(ClaimRule::higher, kLevel), ClaimVerdict::bounded);
}

TEST_F(ClaimVerdicts, OfNoCostNeedATestAgainstTheMargin) {
  EXPECT_EQ(verdict(ClaimRule::not_higher, kLevel), ClaimVerdict::reproduced);
  EXPECT_EQ(verdict(ClaimRule::not_higher, kBetter), ClaimVerdict::reproduced);
  EXPECT_EQ(verdict(ClaimRule::not_higher, kWide), ClaimVerdict::undecided);
  EXPECT_EQ(verdict(ClaimRule::not_higher, kWorse), ClaimVerdict::refuted);
  EXPECT_EQ(verdict(ClaimRule::not_lower, kWorse), ClaimVerdict::reproduced);
  EXPECT_EQ(verdict(ClaimRule::not_lower, kBetter), ClaimVerdict::refuted);
}

TEST_F(ClaimVerdicts, OfEqualityNeedBothSides) {
  EXPECT_EQ(verdict(ClaimRule::equal, kLevel), ClaimVerdict::reproduced);
  EXPECT_EQ(verdict(ClaimRule::equal, kBetter), ClaimVerdict::refuted);
  EXPECT_EQ(verdict(ClaimRule::equal, kWorse), ClaimVerdict::refuted);
  EXPECT_EQ(verdict(ClaimRule::equal, kWide), ClaimVerdict::undecided);
}

// The run's bits per byte must not be printed as a share of wrong lines.
TEST_F(ClaimVerdicts, AFileOfARunDoesNotAnswerForAPartThatItLacks) {
  write_file(folder_ / "compare.json", comparison({{"a", kBetter}, {"base", kZero}}).dump());
  const Claim claim{.id = "x",
                    .measure = {.variant = "a", .against = "base", .at = "/all", .unit = "errors"}};
  const DecidedClaim decided = decide({.seed = "s"}, claim, folder_, folder_ / "compare.json");
  EXPECT_EQ(decided.verdict, ClaimVerdict::not_run);
  EXPECT_FALSE(decided.evidence);
  EXPECT_THAT(decided.reason, HasSubstr("no errors of /all"));
}

TEST_F(ClaimVerdicts, AreNoneForOneSeedAFlawOrNoFile) {
  EXPECT_EQ(verdict(ClaimRule::lower, {-0.3}), ClaimVerdict::undecided);
  EXPECT_EQ(verdict(ClaimRule::lower, kBetter, "another text"), ClaimVerdict::undecided);
  const DecidedClaim missing = decide({.seed = "s"}, {.id = "x", .result = "none.json"}, folder_);
  EXPECT_EQ(missing.verdict, ClaimVerdict::not_run);
  EXPECT_THAT(missing.reason, HasSubstr("none.json"));
}

TEST_F(ClaimVerdicts, OfABenchmarkNeedQuartilesOnOneSideOfThreeRoundsOrMore) {
  const auto of_rounds = [&](int rounds, double q1, double q3) {
    write_file(folder_ / "bench.json",
               fmt::format(R"({{"results": [{{"name": "x", "rounds": {}, "ratio":
                   {{"q1": {}, "median": 1.2, "q3": {}}}}}]}})",
                           rounds, q1, q3));
    Claim claim{.id = "x", .result = "bench.json", .rule = ClaimRule::higher, .margin = 0.02};
    claim.measure = {.variant = "x", .level = 1, .value = "ratio"};
    return decide({.seed = "s"}, claim, folder_).verdict;
  };
  EXPECT_EQ(of_rounds(5, 1.1, 1.3), ClaimVerdict::reproduced);
  EXPECT_EQ(of_rounds(5, 0.9, 1.3), ClaimVerdict::undecided);
  EXPECT_EQ(of_rounds(5, 0.7, 0.9), ClaimVerdict::refuted);
  EXPECT_EQ(of_rounds(1, 1.1, 1.3), ClaimVerdict::undecided);
}

TEST(ClaimEvidence, PIsCorrectedOverAllVariantsOfTheStudy) {
  const EvidenceQuery query{.variant = "a", .against = "standard"};
  const Json alone = comparison({{"standard", kZero}, {"a", {-0.10, -0.14, -0.12}}});
  const Json family = comparison({{"standard", kZero},
                                  {"a", {-0.10, -0.14, -0.12}},
                                  {"b", {0.2, -0.1, 0.1}},
                                  {"c", {0.3, -0.1, 0.1}}});
  const double p = read_evidence(alone, query, "f").corrected_p();
  EXPECT_NEAR(read_evidence(family, query, "f").corrected_p(), 3 * p, 1e-12);
}

TEST(ClaimEvidence, LnZIsThatOfTheLastLoggedStep) {
  Json file = comparison({{"none", kZero}, {"z-loss", kZero}});
  for (size_t variant = 0; variant < 2; ++variant) {
    for (size_t seed = 0; seed < 3; ++seed) {
      const double last = variant == 0 ? 6.0 : 0.5 + 0.1 * double(seed);
      file["variants"][variant]["runs"][seed]["curve"] = {
          {{"step", 1}, {"ln_z_rms", 9.0}}, {{"step", 2}, {"ln_z_rms", last}}, {{"step", 3}}};
    }
  }
  const Evidence evidence = read_evidence(
      file, {.variant = "z-loss", .against = "none", .value = "ln_z_rms"}, "compare.json");
  EXPECT_EQ(evidence.test.pairs, 3);
  EXPECT_NEAR(evidence.test.mean, 0.6 - 6.0, 1e-12);
  const Json without = comparison({{"none", kZero}, {"z-loss", kZero}});
  EXPECT_ERROR(
      InputError,
      read_evidence(without, {.variant = "z-loss", .against = "none", .value = "ln_z_rms"}, "f"),
      "common seeds", "ln_z_rms");
}

TEST(ClaimEvidence, TemperaturesOfTheLastLayerAreReadAgainstThoseOfTheFirst) {
  Json file = comparison({{"constant", kZero}, {"learned", kZero}});
  for (size_t seed = 0; seed < 3; ++seed) {
    file["variants"][1]["runs"][seed]["temperature"] = {
        {{"step", 1}, {"per_layer", {0.5, 0.5, 0.5}}},
        {{"step", 2}, {"per_layer", {0.6, 0.9, 0.4 + 0.01 * double(seed)}}}};
  }
  const Evidence evidence =
      read_evidence(file, {.variant = "learned", .value = "temperature_by_depth"}, "compare.json");
  EXPECT_EQ(evidence.test.pairs, 3);
  EXPECT_NEAR(evidence.test.mean, 0.41 - 0.6, 1e-12);
  EXPECT_EQ(evidence.family.size(), 1u);
}

TEST(ClaimEvidence, SystemsOfOneNameASeedArePairedByTheirSeed) {
  Json file = {{"systems", Json::array()}};
  const auto add = [&](const std::string& name, double ppl, double longer) {
    Json scores = Json::array(
        {{{"length", 1024}, {"perplexity", ppl}}, {{"length", 2048}, {"perplexity", longer}}});
    file["systems"].push_back({{"name", name}, {"scores", scores}});
  };
  add("full attention", 20, 20);
  for (int seed = 0; seed < 3; ++seed) {
    add(fmt::format("Focus, top-2 (seed {})", seed), 21 + 0.1 * seed, 25 + 0.1 * seed);
    add(fmt::format("LoRA (seed {})", seed), 18 + 0.1 * seed, 18);
  }
  EvidenceQuery query{.variant = "Focus, top-2 (seed {seed})",
                      .against = "full attention",
                      .value = "perplexity",
                      .length = 1024};
  Evidence evidence = read_evidence(file, query, "f");
  EXPECT_EQ(evidence.test.pairs, 3);
  EXPECT_NEAR(evidence.test.mean,
              (std::log(21.) + std::log(21.1) + std::log(21.2)) / 3 - std::log(20.), 1e-12);
  query.against = "LoRA (seed {seed})";
  EXPECT_NEAR(read_evidence(file, query, "f").test.mean,
              (std::log(21. / 18) + std::log(21.1 / 18.1) + std::log(21.2 / 18.2)) / 3, 1e-12);
  query.against = "full attention";
  query.length = 2048;
  query.minus_length = 1024;
  EXPECT_NEAR(read_evidence(file, query, "f").test.mean,
              (std::log(25. / 21) + std::log(25.1 / 21.1) + std::log(25.2 / 21.2)) / 3, 1e-12);
}

TEST(ClaimEvidence, KeptNumbersGiveTheTestOfTheirPageOrWelchs) {
  const Json file = Json::parse(R"({"reference": "a", "rows": [
    {"name": "a", "mean": 2.6, "deviation": 0.02, "runs": 3},
    {"name": "b", "mean": 2.8, "deviation": 0.03, "runs": 3, "difference": 0.2, "error": 0.01},
    {"name": "c", "mean": 2.7, "deviation": 0.02, "runs": 3, "difference": 0.1, "error": 0.05}]})");
  const Evidence paired = read_evidence(file, {.variant = "b", .against = "a"}, "f");
  EXPECT_NEAR(paired.test.t, 20, 1e-9);
  EXPECT_EQ(paired.family.size(), 2u);
  const Evidence welch = read_evidence(file, {.variant = "b", .against = "c"}, "f");
  EXPECT_NEAR(welch.test.mean, 0.1, 1e-12);
  EXPECT_GT(welch.test.freedom, 3);
}

TEST(ClaimEvidence, TasksArePairedByQuestionAndAveraged) {
  const Json file = Json::parse(R"({"hard": {"against": [
    {"task": "a", "questions": 400, "difference": -0.02, "error": 0.01},
    {"task": "b", "questions": 500, "difference": 0.0, "error": 0.0}]}})");
  Evidence evidence = read_evidence(file, {.variant = "a", .at = "/hard"}, "f");
  EXPECT_DOUBLE_EQ(evidence.test.mean, -0.02);
  EXPECT_EQ(evidence.family.size(), 2u);
  EXPECT_EQ(evidence.pairs_are, "questions");
  evidence = read_evidence(file, {.variant = "b", .at = "/hard"}, "f");
  EXPECT_DOUBLE_EQ(evidence.test.error, 1.0 / 500) << "as if one question had differed";
  EXPECT_LT(evidence.p_equivalent(0.01), 0.001);
  evidence = read_evidence(file, {.variant = "mean", .at = "/hard"}, "f");
  EXPECT_DOUBLE_EQ(evidence.test.mean, -0.01);
  EXPECT_NEAR(evidence.test.error, std::hypot(0.01, 0.002) / 2, 1e-12);
  EXPECT_EQ(evidence.test.pairs, 900);
  EXPECT_EQ(evidence.family.size(), 1u);
  EXPECT_ERROR(InputError, read_evidence(file, {.variant = "c", .at = "/hard"}, "f"), "'c'");
}

TEST(ClaimEvidence, TrainingsArePutTogetherTaskByTask) {
  const auto part = [](double of_a, double of_b) {
    return fmt::format(R"({{"against": [
      {{"task": "a", "questions": 400, "difference": {}, "error": 0.01}},
      {{"task": "b", "questions": 500, "difference": {}, "error": 0.0}}]}})",
                       of_a, of_b);
  };
  const std::string two = R"({"hard 0": )" + part(-0.02, 0) + R"(, "hard 1": )" + part(-0.04, 0);
  const Json file = Json::parse(two + R"(, "hard 2": )" + part(-0.06, 0) + "}");
  Evidence evidence = read_evidence(file, {.variant = "a", .at = "/hard {seed}"}, "f");
  EXPECT_NEAR(evidence.test.mean, -0.04, 1e-12);
  EXPECT_NEAR(evidence.test.error, std::hypot(0.01, 0.02 / std::sqrt(3.0)), 1e-12);
  EXPECT_EQ(evidence.family.size(), 2u);
  EXPECT_EQ(evidence.pairs_are, "questions x 3 trainings");
  evidence = read_evidence(file, {.variant = "b", .at = "/hard {seed}"}, "f");
  EXPECT_DOUBLE_EQ(evidence.test.error, 1.0 / 500);
  EXPECT_NEAR(evidence.test.freedom, 499, 1e-9);
  evidence = read_evidence(file, {.variant = "mean", .at = "/hard {seed}"}, "f");
  EXPECT_NEAR(evidence.test.mean, -0.02, 1e-12);
  EXPECT_ERROR(InputError,
               read_evidence(Json::parse(R"({"hard 0": )" + part(0, 0) + "}"),
                             {.variant = "a", .at = "/hard {seed}"}, "f"),
               "'/hard 1'");
}

TEST(ClaimEvidence, RowsMaySayWhatTheirValuesAre) {
  const Json file = Json::parse(R"({"classes": {"pairs": "texts", "reference": "one-step", "rows": [
    {"name": "trained", "values": [1.0, 1.0, 1.0]},
    {"name": "one-step", "values": [0.7, 0.4, 0.8]}]}})");
  const Evidence level =
      read_evidence(file, {.variant = "trained", .level = 0.96, .at = "/classes"}, "f");
  EXPECT_EQ(level.pairs_are, "texts");
  EXPECT_NEAR(level.test.mean, 0.04, 1e-12);
  EXPECT_EQ(level.test.p, 0.0);
  const Evidence control =
      read_evidence(file, {.variant = "trained", .against = "one-step", .at = "/classes"}, "f");
  EXPECT_NEAR(control.test.mean, (0.3 + 0.6 + 0.2) / 3, 1e-12);
}

TEST(ClaimEvidence, BenchmarksGiveQuartilesAndNoTest) {
  const Json file = Json::parse(
      R"({"results": [{"name": "x", "pairs": 7, "ratio": {"q1": 1.5, "median": 1.6, "q3": 1.7}}]})");
  const Evidence evidence =
      read_evidence(file, {.variant = "x", .level = 1, .value = "ratio"}, "f");
  EXPECT_TRUE(evidence.is_benchmark());
  EXPECT_NEAR(evidence.quartiles.low, 0.5, 1e-12);
  EXPECT_TRUE(std::isnan(evidence.corrected_p()));
}

TEST(ClaimEvidence, WhatAFileLacksIsNamed) {
  const Json file = comparison({{"standard", kZero}, {"focal", kLevel}});
  EXPECT_ERROR(InputError,
               read_evidence(file, {.variant = "focl", .against = "standard"}, "a.json"),
               "[a.json]", "'focl'", "focal");
  EXPECT_ERROR(InputError,
               read_evidence(file, {.variant = "focal", .against = "standard", .value = "nothing"},
                             "a.json"),
               "nothing", "common seeds");
  EXPECT_ERROR(InputError, read_evidence(Json::parse("{\"a\": 1}"), {.variant = "x"}, "b.json"),
               "[b.json]", "rows");
}

TEST(Claims, TheProgramsOwnAreReadAndHaveIdsOfTheirOwn) {
  const std::vector<ClaimFile> files = known_claims();
  std::set<std::string> ids, seeds;
  for (const ClaimFile& file : files) {
    seeds.insert(file.seed);
    for (const Claim& claim : file.claims)
      EXPECT_TRUE(ids.insert(file.seed + "/" + claim.id).second) << claim.id;
  }
  EXPECT_EQ(seeds, (std::set<std::string>{"focal", "focus", "lecture", "mta"}));
  EXPECT_GE(ids.size(), 100u);
}

TEST(Claims, EveryResultFileAnswersItsClaimAndThePageIsMadeOfIt) {
  const std::vector<ClaimFile> files = known_claims();
  const std::vector<DecidedClaim> decided = decide_all(files, FOVEA_SOURCE_DIR);
  for (const DecidedClaim& claim : decided) {
    if (!claim.claim.result.empty()) {
      EXPECT_NE(claim.verdict, ClaimVerdict::not_run) << claim.id() << ": " << claim.reason;
    }
  }
  EXPECT_EQ(read_file(FOVEA_SOURCE_DIR "/docs/findings/claims.md"), claims_markdown(files, decided))
      << "make claims writes it";
}

TEST(Claims, EveryTwinNamesARecipeThatExists) {
  for (const ClaimFile& file : known_claims()) {
    for (const Claim& claim : file.claims) {
      for (const std::string& text : {claim.command, claim.paper_recipe}) {
        const size_t at = text.find("recipes/");
        if (at == std::string::npos) continue;
        const std::string path = text.substr(at, text.find(' ', at) - at);
        EXPECT_TRUE(std::filesystem::exists(FOVEA_SOURCE_DIR "/" + path))
            << claim.id << ' ' << path;
      }
    }
  }
}

TEST(Claims, BadFilesAreRefusedByName) {
  EXPECT_ERROR(ConfigError, parse_claims("seed: a\nclaims: []\n", "a.yaml"), "a.yaml", "claims");
  const std::string head = "seed: a\nmargin: 0.1\nclaims:\n";
  const std::string one = "  - {id: x, place: T, claim: c}\n";
  EXPECT_ERROR(ConfigError, parse_claims(head + one + one, "a.yaml"), "'x'", "id");
  EXPECT_ERROR(ConfigError, parse_claims("seed: a\nclaims:\n" + one, "a.yaml"), "margin");
  EXPECT_ERROR(
      ConfigError,
      parse_claims(head + "  - {id: x, place: T, claim: c, result: r.json, here: h}\n", "a.yaml"),
      "measure.variant");
  EXPECT_ERROR(ConfigError, parse_claims(head + "  - {id: x, plase: T, claim: c}\n", "a.yaml"),
               "plase", "place");
}

TEST(Claims, ANameFindsTheClaimsOfItsTable) {
  const std::vector<DecidedClaim> claims = decide_all(known_claims(), "/nowhere");
  EXPECT_EQ(claims_named(claims, "focal/fig-4").size(), 1u);
  EXPECT_GE(claims_named(claims, "mta/table-1").size(), 5u);
  EXPECT_ERROR(ConfigError, claims_named(claims, "mta/tabel-8"), "mta/tabel-8", "mta/table-8");
}

}  // namespace
}  // namespace fovea::claims_test
