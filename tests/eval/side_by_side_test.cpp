// One model under several attentions: pairs, paired differences, systems that cannot be.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/side_by_side.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/eval/cache_reads.h"
#include "fovea/eval/finished_scores.h"
#include "fovea/kernels/common/mask_rule.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace fovea::side_by_side_test {
namespace {

using namespace fovea::testing;

std::string text(int64_t bytes) {
  std::string s;
  for (int64_t i = 0; i < bytes; ++i) s += static_cast<char>('a' + i * i % 26);
  return s;
}

class SideBySideTest : public ::testing::Test {
 protected:
  SideBySideTest() {
    ModelConfig config = tiny_config();
    config.context = 64;
    save_model(folder_ / "model", Transformer(config.resolved(config.vocab_size), 5),
               *byte_tokenizer());
  }
  SideBySideResult compare(const std::vector<AttentionSystem>& systems) {
    const std::vector<ScoreDocument> documents{{"text", text(400)}};
    return compare_attentions({systems}, documents,
                              {.model = folder_ / "model", .lengths = {16, 32}, .copy = 8});
  }
  TemporaryFolder folder_;
};

TEST_F(SideBySideTest, TheSameAttentionTwiceDiffersByNothing) {
  const SideBySideResult result =
      compare({{.name = "full"}, {.name = "wide", .attention = {"mask.window=64"}}});
  ASSERT_EQ(result.rows.size(), 2u);
  for (size_t n = 0; n < 2; ++n) {
    const SideBySideScore &full = result.rows[0].scores[n], &wide = result.rows[1].scores[n];
    EXPECT_EQ(full.length, n == 0 ? 16 : 32);
    EXPECT_EQ(full.perplexity, wide.perplexity);
    EXPECT_EQ(full.copy, wide.copy);
    EXPECT_EQ(wide.difference.mean, 0.0);
    EXPECT_EQ(wide.p, 1.0);
    EXPECT_EQ(wide.difference.pairs, n == 0 ? 25 : 13);
  }
  EXPECT_THAT(result.rows[1].pipeline, ::testing::HasSubstr("window 64"));
}

TEST_F(SideBySideTest, DifferencesAreThoseOfThePerplexities) {
  const SideBySideResult result =
      compare({{.name = "full"}, {.name = "narrow", .attention = {"mask.window=2"}}});
  const SideBySideScore &full = result.rows[0].scores[0], &narrow = result.rows[1].scores[0];
  EXPECT_NE(full.perplexity, narrow.perplexity);
  EXPECT_NEAR(narrow.difference.mean, std::log(narrow.perplexity / full.perplexity), 1e-6);
  const nlohmann::ordered_json json = result.to_json();
  EXPECT_FALSE(json["systems"][0]["scores"][0].contains("difference"));
  EXPECT_EQ(json["systems"][1]["scores"][0]["difference"]["windows"], 25);
}

TEST_F(SideBySideTest, WhatNoFileHoldsIsTold) {
  const SideBySideResult result =
      compare({{.name = "full"}, {.name = "mixed", .attention = {"head_mix.before=full"}}});
  EXPECT_EQ(result.rows[0].drawn, 0);
  EXPECT_EQ(result.rows[1].drawn, 2);  // a matrix a layer
  EXPECT_EQ(result.to_json()["systems"][1]["drawn_tensors"], 2);
}

TEST_F(SideBySideTest, ASystemThatCannotWriteIsMeasuredWithoutAndSaysWhy) {
  const std::vector<ScoreDocument> documents{{"text", text(400)}};
  const SideBySideResult result = compare_attentions(
      {{{.name = "full"}, {.name = "both ways", .attention = {"mask.causal=false"}}}}, documents,
      {.model = folder_ / "model", .lengths = {16}, .speed = true});
  EXPECT_EQ(result.rows[0].cannot_write, "");
  EXPECT_TRUE(result.rows[0].scores[0].speed.has_value());
  EXPECT_THAT(result.rows[1].cannot_write, ::testing::HasSubstr("mask.causal"));
  EXPECT_FALSE(result.rows[1].scores[0].speed.has_value());
  EXPECT_GT(result.rows[1].scores[0].perplexity, 1.0);
  EXPECT_TRUE(result.to_json()["systems"][1].contains("cannot_write"));
}

TEST_F(SideBySideTest, WindowsAndStridesKeepThePairsOfAnother) {
  const SideBySideResult result =
      compare({{.name = "full"},
               {.name = "sinks", .attention = {"mask.window=6", "mask.sinks=2"}},
               {.name = "window", .pairs_of = "sinks"},
               {.name = "strided",
                .attention = {"mask.sparsity=strided", "mask.window=2", "mask.stride=1"},
                .pairs_of = "sinks"}});
  for (size_t n = 0; n < 2; ++n) {
    const int64_t length = result.rows[0].scores[n].length;
    const auto share = [length](const MaskRule& rule) {
      double seen = 0.0;
      for (int64_t i = 0; i < length; ++i)
        for (int64_t j = 0; j <= i; ++j) seen += allowed(rule, {0, i}, {0, j}) ? 1.0 : 0.0;
      return seen / (0.5 * static_cast<double>(length * (length + 1)));
    };
    const double wanted = share({.window = 6, .sinks = 2});
    EXPECT_NEAR(*result.rows[1].scores[n].pairs, wanted, 1e-12);
    const int64_t window = result.rows[2].scores[n].window;
    EXPECT_NEAR(*result.rows[2].scores[n].pairs, share({.window = window}), 1e-12);
    for (const int64_t other : {window - 1, window + 1})
      EXPECT_LE(std::abs(share({.window = window}) - wanted),
                std::abs(share({.window = other}) - wanted));
    const auto strided = [](int64_t stride) {
      return MaskRule{.window = 2, .sparsity = MaskRule::Sparsity::strided, .stride = stride};
    };
    const int64_t stride = result.rows[3].scores[n].window;
    for (int64_t other = 1; other < length; ++other)
      EXPECT_LE(std::abs(share(strided(stride)) - wanted),
                std::abs(share(strided(other)) - wanted) + 1e-12);
  }
}

TEST_F(SideBySideTest, AnInterruptedOneGoesOnWhereItStopped) {
  const std::vector<ScoreDocument> documents{{"text", text(400)}};
  const AttentionSystems systems{
      {{.name = "full"}, {.name = "window", .attention = {"mask.window=6"}}}};
  SideBySideOptions options{.model = folder_ / "model", .lengths = {16, 32}, .copy = 8};
  const SideBySideResult whole = compare_attentions(systems, documents, options);

  options.finished = folder_ / "finished.json";
  std::atomic<bool> stop = false;
  std::vector<std::string> measured;
  const auto progress = [&](std::string_view label, int64_t, int64_t) {
    if (measured.empty() || measured.back() != label) measured.emplace_back(label);
  };
  EXPECT_ERROR(Interrupted,
               compare_attentions(
                   systems, documents, options,
                   [&](std::string_view label, int64_t done, int64_t total) {
                     progress(label, done, total);
                     if (label.starts_with("window, 16")) stop = true;
                   },
                   &stop),
               "the same command goes on");
  EXPECT_TRUE(std::filesystem::exists(options.finished));
  measured.clear();
  const SideBySideResult rest = compare_attentions(systems, documents, options, progress);
  EXPECT_THAT(measured, ::testing::Each(::testing::StartsWith("window, ")));
  EXPECT_EQ(rest.to_json(), whole.to_json());
  EXPECT_FALSE(std::filesystem::exists(options.finished)) << "all is finished";
}

TEST_F(SideBySideTest, ScoresOfAnotherQuestionAreNotTaken) {
  const std::vector<ScoreDocument> documents{{"text", text(400)}};
  SideBySideOptions options{.model = folder_ / "model", .lengths = {16}};
  options.finished = folder_ / "finished.json";
  write_file(options.finished, "no list");
  const SideBySideResult result = compare_attentions({{{.name = "full"}}}, documents, options);
  EXPECT_GT(result.rows[0].scores[0].perplexity, 1.0);
  FinishedScores scores(options.finished);
  FinishedScore score;
  score.score.length = 16;
  score.score.pairs = 0.5;
  score.score.speed.emplace(DecodeSpeed{16, 2.0, 1.0, "x"});
  score.windows = {{3.5, 15}};
  scores.keep({{"length", 16}}, score);
  const FinishedScores again(options.finished);
  EXPECT_EQ(again.find({{"length", 32}}), nullptr);
  const FinishedScore* found = again.find({{"length", 16}});
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->score.pairs, 0.5);
  EXPECT_EQ(found->score.bytes_read, std::nullopt);
  EXPECT_EQ(found->score.speed->path, "x");
  EXPECT_EQ(found->windows[0].nll, 3.5);
}

// 2 layers, 2 key heads of 8: the bytes by hand.
TEST_F(SideBySideTest, BytesThatATokenReadsFollowTheRuleOfEachLayer) {
  ModelConfig config = tiny_config();
  const auto rows = [&](const std::vector<std::string>& keys, const MeasuredReads& measured = {}) {
    const auto bytes =
        cache_bytes_read(with_attention_keys(config, keys), 32, at::kFloat, measured);
    const auto row = static_cast<double>(config.layers * config.kv_heads * config.head_dim * 2 * 4);
    return bytes ? *bytes / row : -1.0;
  };
  config = config.resolved(config.vocab_size);
  EXPECT_DOUBLE_EQ(rows({}), 32.0);
  EXPECT_DOUBLE_EQ(rows({"mask.window=6", "mask.sinks=2"}), 8.0);
  EXPECT_DOUBLE_EQ(rows({"streaming.recent=6", "streaming.start=2"}), 8.0);
  // r of d components of every key are a half of r / d of its row.
  EXPECT_DOUBLE_EQ(rows({"sparq.components=2", "sparq.keys=4"}),
                   32.0 / static_cast<double>(config.head_dim) + 5.0);
  const std::vector<std::string> focus{"focus.gate=log", "focus.window=6", "focus.sinks=2"};
  EXPECT_DOUBLE_EQ(rows(focus), 32.0) << "soft: every pair";
  EXPECT_DOUBLE_EQ(rows(focus, {.distant_kept = 0.25}), 8.0 + 0.25 * 24.0);
  const std::vector<std::string> routing{"routing.clusters=2", "routing.keep=8"};
  EXPECT_EQ(rows(routing), -1.0) << "by content";
  EXPECT_DOUBLE_EQ(rows(routing, {.chosen_keys = 5.5}), 5.5);
  EXPECT_EQ(rows({"magic_pig.bits=4"}), -1.0);
  EXPECT_DOUBLE_EQ(rows({"magic_pig.bits=4"}, {.chosen_keys = 5.5}), (32.0 + 5.5) / 2.0)
      << "one of the layers reads everything";
  // The state does not grow.
  const std::vector<std::string> performer{"performer.features=16"};
  EXPECT_EQ(*cache_bytes_read(with_attention_keys(config, performer), 32, at::kFloat),
            *cache_bytes_read(with_attention_keys(config, performer), 64, at::kFloat));
}

// What rows of the text read: all keys where as many as there are may be read.
TEST_F(SideBySideTest, PairsThatAreChosenByContentAreCountedOnTheText) {
  const SideBySideResult result =
      compare({{.name = "full"},
               {.name = "all keys", .attention = {"magic_pig.bits=1", "magic_pig.start=64"}},
               {.name = "sampled",
                .attention = {"magic_pig.bits=6", "magic_pig.tables=8", "magic_pig.start=2",
                              "magic_pig.recent=4"}},
               {.name = "routing", .attention = {"routing.clusters=2", "routing.keep=8"}}});
  for (size_t n = 0; n < 2; ++n) {
    const SideBySideScore &full = result.rows[0].scores[n], &all = result.rows[1].scores[n];
    EXPECT_DOUBLE_EQ(all.pairs.value(), 1.0);
    EXPECT_DOUBLE_EQ(all.bytes_read.value(), full.bytes_read.value());
    EXPECT_NEAR(all.perplexity, full.perplexity, 1e-4 * full.perplexity);
    for (const size_t row : {2, 3}) {
      const SideBySideScore& some = result.rows[row].scores[n];
      EXPECT_GT(some.pairs.value(), 0.1) << result.rows[row].system.name;
      EXPECT_LT(some.pairs.value(), 0.95) << result.rows[row].system.name;
      EXPECT_LT(some.bytes_read.value(), 0.95 * full.bytes_read.value())
          << result.rows[row].system.name;
    }
  }
}

TEST_F(SideBySideTest, EveryFileOfTheRepositoryIsRead) {
  ModelConfig config = tiny_config();
  config.width = 128, config.head_dim = 64;
  int64_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(
           std::filesystem::path(FOVEA_SOURCE_DIR) / "recipes" / "systems")) {
    const AttentionSystems systems = read_attention_systems(file.path());
    EXPECT_GE(systems.systems.size(), 2u) << file.path();
    for (const AttentionSystem& system : systems.systems)
      EXPECT_NO_THROW(with_attention_keys(config, system.attention)) << system.name;
    ++files;
  }
  EXPECT_GE(files, 1);
}

TEST_F(SideBySideTest, ImpossibleSystemsAreRefused) {
  const auto file = [&](const std::string& content) {
    write_file(folder_ / "systems.yaml", content);
    return read_attention_systems(folder_ / "systems.yaml");
  };
  EXPECT_ERROR(ConfigError, file("systems: []"), "at least one");
  EXPECT_ERROR(ConfigError, file("systems: [{name: a}, {name: a}]"), "two systems", "'a'");
  EXPECT_ERROR(ConfigError, file("systems: [{attention: []}]"), "needs a 'name'");
  EXPECT_ERROR(ConfigError, file(R"(systems: [{name: "\x1b[31mred"}])"), "control characters",
               "'\\x1b[31mred'");
  EXPECT_ERROR(ConfigError, file("systems: [{name: a, pairs_of: b}, {name: b}]"), "pairs_of",
               "'b'");
  EXPECT_ERROR(ConfigError, file("systems: [{name: a, atention: []}]"), "did you mean 'attention'");
  EXPECT_ERROR(ConfigError, compare({{.name = "a", .attention = {"mask.windw=2"}}}), "windw");
  const std::vector<ScoreDocument> small{{"text", "ab"}};
  EXPECT_ERROR(
      InputError,
      compare_attentions({{{.name = "a"}}}, small, {.model = folder_ / "model", .lengths = {16}}),
      "16 tokens", "--lengths");
}

}  // namespace
}  // namespace fovea::side_by_side_test
