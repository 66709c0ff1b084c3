// A comparison end to end on a tiny corpus: equal budgets, resuming, adding variants, honest rows.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/compare.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/compare/worker_choice.h"
#include "fovea/report/format.h"
#include "tests/support/expect_error.h"

namespace fovea::compare_test {
namespace {

namespace fs = std::filesystem;

class CompareTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              fmt::format("fovea-compare-{}-{}", getpid(),
                          ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_ / "text");
    for (int i = 0; i < 40; ++i) {
      std::string text;
      for (int k = 0; k < 30; ++k)
        text += fmt::format("line {} of file {} says {}\n", k, i, (i * k) % 7);
      write_file(folder_ / "text" / fmt::format("{}.txt", i), text);
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  LoadedRecipe load(const std::string& compare, std::vector<std::string> overrides = {}) {
    write_file(folder_ / "recipe.yaml", fmt::format(R"(name: tiny
run_folder: {0}/run
data: {{sources: [{{path: {0}/text}}], cache: {0}/cache}}
model: {{layers: 1, width: 16, heads: 2, ffn_width: 32, context: 16}}
train: {{steps: 4, batch_rows: 2, dtype: float32, log_interval: 1, evaluation_tokens: 256, threads: 1}}
compare:
  sample: {{prompt: "line ", tokens: 8}}
  map: {{text: "line 1", tokens: 6}}
{1})",
                                                    folder_.string(), compare));
    return load_recipe(folder_ / "recipe.yaml", overrides);
  }
  CompareResult run(const LoadedRecipe& loaded) {
    labels_.clear();
    CompareCallbacks callbacks;
    callbacks.progress = [this](const CompareProgress& p) {
      if (labels_.empty() || labels_.back() != p.label) labels_.push_back(p.label);
    };
    return run_compare(loaded, read_compare_config(loaded.compare), callbacks);
  }

  fs::path folder_;
  std::vector<std::string> labels_;
};

constexpr const char* kTwo = R"(  seeds: [0, 1]
  variants:
    - name: standard
    - name: focal
      set: {model.attention.temperature.value: 0.4}
)";

TEST_F(CompareTest, AllVariantsAndSeedsSeeTheSameTokensAndAreJudged) {
  const CompareResult result = run(load(kTwo));
  ASSERT_EQ(result.variants.size(), 2u);
  EXPECT_EQ(labels_.size(), 4u);
  for (const CompareVariant& v : result.variants) {
    ASSERT_EQ(v.runs.size(), 2u);
    for (const CompareRun& r : v.runs) {
      EXPECT_EQ(r.tokens, 4 * 2 * 16);
      EXPECT_EQ(r.curve.size(), 4u);
      EXPECT_GT(r.validation_bits_per_byte, 1.0);
      EXPECT_LT(r.validation_bits_per_byte, 12.0);
      EXPECT_GT(r.peak_memory_bytes, 1 << 20);
    }
    EXPECT_EQ(v.sample.prompt, "line ");
    EXPECT_EQ(v.attention_maps.size(), 2u);
    EXPECT_EQ(v.attention_maps[0].tokens.size(), 6u);
    EXPECT_NEAR(v.attention_maps[1].rows[5][0] + v.attention_maps[1].rows[5][5], 1.0, 1.0);
  }
  EXPECT_EQ(result.variants[0].summary.verdict, Verdict::reference);
  EXPECT_EQ(result.variants[1].summary.pairs, 2);
  // Two orders, on the 4 x 2 x 16 inputs of a run and on the whole text.
  ASSERT_EQ(result.baselines.size(), 4u);
  EXPECT_EQ(result.baselines[0].name, "bigram-seen");
  EXPECT_EQ(result.baselines[3].name, "trigram-all");
  const auto& [seen_pairs, seen_triples, all_pairs, all_triples] =
      std::tie(result.baselines[0], result.baselines[1], result.baselines[2], result.baselines[3]);
  EXPECT_LE(seen_pairs.text_bytes, 4 * 2 * 16);
  EXPECT_GT(seen_pairs.text_bytes, 4 * 2 * 16 / 2);
  EXPECT_GT(all_pairs.text_bytes, seen_pairs.text_bytes);
  EXPECT_LT(all_pairs.bits_per_byte, seen_pairs.bits_per_byte);
  EXPECT_LT(all_triples.bits_per_byte, all_pairs.bits_per_byte);
  EXPECT_LT(all_triples.bits_per_byte, seen_triples.bits_per_byte);
}

TEST_F(CompareTest, WithoutAPromptTheModelsContinueAValidationDocument) {
  const CompareResult result = run(load(kTwo, {"compare.sample.prompt=''"}));
  for (const CompareVariant& v : result.variants) {
    EXPECT_TRUE(v.sample.prompt.starts_with("line 0 ")) << v.sample.prompt;
    EXPECT_FALSE(v.sample.text.empty());
  }
}

TEST_F(CompareTest, FinishedRunsAreTakenAndAnAddedVariantRunsAlone) {
  const CompareResult first = run(load(kTwo));
  EXPECT_EQ(labels_.size(), 4u);
  const CompareResult again =
      run(load(std::string(kTwo) + "    - name: sharp\n      set: {model.query_init: 2.5}\n"));
  EXPECT_EQ(labels_.size(), 2u) << fmt::format("{}", fmt::join(labels_, "; "));
  EXPECT_TRUE(std::all_of(labels_.begin(), labels_.end(),
                          [](const auto& l) { return l.starts_with("sharp"); }));
  ASSERT_EQ(again.variants.size(), 3u);
  for (size_t v = 0; v < 2; ++v) {
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(again.variants[v].runs[r].validation_bits_per_byte,
                first.variants[v].runs[r].validation_bits_per_byte);
    }
  }
}

TEST_F(CompareTest, ComparisonsThatShareAFolderTrainTheirReferenceOnce) {
  const std::string shared = fmt::format("compare.runs_folder={}/shared", folder_.string());
  const CompareResult first = run(load(kTwo, {shared}));
  EXPECT_EQ(labels_.size(), 4u);
  const std::string other = R"(  seeds: [0, 1]
  variants:
    - name: standard
    - name: sharp
      set: {model.query_init: 2.5}
)";
  const CompareResult second =
      run(load(other, {shared, fmt::format("run_folder={}/second", folder_.string())}));
  EXPECT_EQ(labels_.size(), 2u) << fmt::format("{}", fmt::join(labels_, "; "));
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(second.variants[0].runs[r].validation_bits_per_byte,
              first.variants[0].runs[r].validation_bits_per_byte);
  }
  run(load(kTwo, {shared, "train.steps=5"}));
  EXPECT_EQ(labels_.size(), 4u) << "other settings are other runs";
  EXPECT_FALSE(fs::exists(folder_ / "run" / "runs"));
}

std::string two_questions(const fs::path& folder) {
  write_file(folder / "q.jsonl",
             "{\"q\": \"ab\", \"a\": [\"c\", \"d\"], \"gold\": 0}\n"
             "{\"q\": \"li\", \"a\": [\"ne\", \"xx\"], \"gold\": 0}\n");
  write_file(folder / "letters.yaml",
             "name: letters\ntitle: two letters\ndata: [q.jsonl]\nheadline: acc\nforms:\n"
             "  - context: \"{{q}}\"\n    choices: a\n    gold: gold\n");
  return fmt::format("  tasks: {{names: [{0}/letters.yaml], data: {0}", folder.string());
}

TEST_F(CompareTest, EveryRunAnswersTheTasksOnce) {
  const std::string tasks = two_questions(folder_);
  run(load(kTwo));  // trained before anyone asked
  const CompareResult result = run(load(kTwo + tasks + "}\n"));
  for (const CompareVariant& v : result.variants) {
    for (const CompareRun& r : v.runs) {
      ASSERT_EQ(r.tasks.size(), 1u);
      EXPECT_EQ(r.tasks[0].task, "letters");
      EXPECT_EQ(r.tasks[0].metric, "acc");
      EXPECT_EQ(r.tasks[0].step, 4);
      EXPECT_EQ(r.tasks[0].items, 2);
      EXPECT_GE(r.tasks[0].value, 0.0);
    }
  }
  const std::vector<TaskRow> rows = task_rows(result);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].difference.pairs, 0);  // the reference
  EXPECT_EQ(rows[1].difference.pairs, 2);
  EXPECT_NEAR(rows[1].difference.mean, rows[1].score.mean - rows[0].score.mean, 1e-12);
  // The answers are taken from their logs, and a longer list of checkpoints asks only what is new.
  run(load(kTwo + tasks + "}\n"));
  EXPECT_TRUE(std::ranges::none_of(
      labels_, [](const auto& l) { return l.find("1 of 2") != std::string::npos; }));
}

TEST_F(CompareTest, CheckpointsAnswerToo) {
  const std::string tasks = two_questions(folder_);
  const CompareResult result =
      run(load(kTwo + tasks + ", checkpoints: true}\n",
               {"train.checkpoint_interval=2", "train.keep_checkpoints=4"}));
  const std::vector<TaskPoint>& points = result.variants[1].runs[0].tasks;
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].step, 2);
  EXPECT_EQ(points[1].step, 4);
  EXPECT_EQ(task_rows(result)[1].items, 2);
}

TEST_F(CompareTest, TasksThatCannotBeAskedStopItBeforeTheTraining) {
  EXPECT_ERROR(ConfigError, run(load(std::string(kTwo) + "  tasks: {names: [hellaswagg]}\n")),
               "hellaswagg", "did you mean 'hellaswag'");
  EXPECT_ERROR(InputError, run(load(std::string(kTwo) + "  tasks: {names: [hellaswag]}\n")),
               "data");
  EXPECT_FALSE(fs::exists(folder_ / "run" / "runs"));
}

TEST_F(CompareTest, AChangedTextNeverMeetsOldRuns) {
  run(load(kTwo));
  write_file(folder_ / "text" / "0.txt",
             "something else entirely, and rather more of it than before\n");
  run(load(kTwo));
  EXPECT_EQ(labels_.size(), 4u);
}

// F-5, spec 10.1: with the temperature folded into W_q the two variants start from the same
// function.
TEST_F(CompareTest, TheFairControlStartsWhereFocalStarts) {
  const CompareResult result = run(load(R"(  seeds: [3]
  variants:
    - name: focal
      set: {model: {attention: {temperature: {value: 0.4}}}}
    - name: control
      set: {model.query_init: 2.5}
)"));
  EXPECT_NEAR(result.variants[0].runs[0].curve[0].train_loss,
              result.variants[1].runs[0].curve[0].train_loss, 1e-5);
  EXPECT_EQ(result.variants[1].summary.verdict, Verdict::one_seed);
}

TEST_F(CompareTest, EqualParametersFitsTheFeedForwardWidth) {
  const LoadedRecipe loaded = load(R"(  seeds: [0]
  budget: parameters
  variants:
    - name: mha
    - name: mqa
      set: {model.kv_heads: 1}
)");
  const auto runs = plan_runs(loaded, read_compare_config(loaded.compare), "", 259);
  EXPECT_GT(runs[1].recipe.model.ffn_width, 32);
  const int64_t a = parameter_count(runs[0].recipe.model.resolved(259)),
                b = parameter_count(runs[1].recipe.model.resolved(259));
  EXPECT_LE(std::abs(a - b), 3 * 16 / 2);
}

TEST_F(CompareTest, ASweepMakesAVariantOfEveryCombination) {
  const LoadedRecipe grid = load(R"(  variants:
    - name: standard
    - name: focal
      set: {model.attention.temperature.value: 0.4}
  sweep:
    model.ffn_width: [32, 48]
    train.optimizer.learning_rate: [1e-3, 2e-3, 4e-3]
)");
  const CompareConfig config = read_compare_config(grid.compare);
  ASSERT_EQ(config.variants.size(), 12U);
  EXPECT_EQ(config.variants[0].name, "standard+ffn_width-32+learning_rate-1e-3");
  EXPECT_EQ(config.variants[11].name, "focal+ffn_width-48+learning_rate-4e-3");
  EXPECT_EQ(config.reference, config.variants[0].name);
  EXPECT_EQ(config.variants[5].family, "standard");
  EXPECT_EQ(config.variants[6].family, "focal");
  const auto runs = plan_runs(grid, config, "text", 259);
  const Recipe last = runs.back().recipe;
  EXPECT_EQ(last.model.ffn_width, 48);
  EXPECT_EQ(last.train.optimizer.learning_rate, 4e-3);
  EXPECT_EQ(last.model.attention.spec.temperature.value, 0.4);
  const CompareConfig alone =
      read_compare_config(load("  sweep: {model.layers: [1, 2]}\n").compare);
  ASSERT_EQ(alone.variants.size(), 2U);
  EXPECT_EQ(alone.variants[1].name, "layers-2");
  EXPECT_EQ(alone.variants[1].family, "model");
  EXPECT_ERROR(ConfigError, read_compare_config(load("  sweep: {model.layers: 2}\n").compare),
               "model.layers", "list");
  EXPECT_ERROR(ConfigError, read_compare_config(load("  sweep: [1]\n").compare), "sweep", "map");
}

TEST_F(CompareTest, TuningGivesEachVariantItsBestValueByASeedThatDoesNotCount) {
  const CompareResult result = run(load(std::string(kTwo) + R"(
  equivalence_margin: 0.02
  tuning: {key: train.optimizer.learning_rate, values: [1.0e-9, 3.0e-2, 1.0e-8], seed: 77}
)"));
  EXPECT_EQ(result.tuned_key, "train.optimizer.learning_rate");
  EXPECT_EQ(result.equivalence_margin, 0.02);
  ASSERT_EQ(result.tuning.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(result.tuning[i].chosen, i % 3 == 1) << i;
    EXPECT_TRUE(std::isfinite(result.tuning[i].bits_per_byte)) << i;
  }
  ASSERT_EQ(result.variants.size(), 2u);
  for (const CompareVariant& variant : result.variants) {
    ASSERT_EQ(variant.runs.size(), 2u);
    for (const CompareRun& run : variant.runs) EXPECT_NE(run.seed, 77);
    EXPECT_EQ(variant.config.back(),
              std::pair(std::string("train.optimizer.learning_rate"), std::string("3.0e-2")));
  }
  EXPECT_EQ(labels_.size(), 6u + 4u);
  run(load(std::string(kTwo) + R"(
  equivalence_margin: 0.02
  tuning: {key: train.optimizer.learning_rate, values: [1.0e-9, 3.0e-2, 1.0e-8], seed: 77}
)"));
  EXPECT_TRUE(labels_.empty()) << "finished trials are taken as they stand";
}

TEST_F(CompareTest, OnlyTheNamedVariantsAndTheReferenceAreCompared) {
  const std::string three = std::string(kTwo) + R"(    - name: deeper
      set: {model.layers: 2}
)";
  const CompareConfig config = read_compare_config(load(three, {"compare.only=[deeper]"}).compare);
  ASSERT_EQ(config.variants.size(), 2u);
  EXPECT_EQ(config.variants[0].name, "standard");
  EXPECT_EQ(config.variants[1].name, "deeper");
  EXPECT_EQ(config.variants[1].set.fields.size(), 1u);
  EXPECT_ERROR(ConfigError, read_compare_config(load(three, {"compare.only=[deper]"}).compare),
               "compare.only", "deeper");
}

TEST_F(CompareTest, RunsOfAnEarlierFileCountAndAreNotTrainedAgain) {
  const std::string tuning =
      "  tuning: {key: train.optimizer.learning_rate, values: [1.0e-9, 3.0e-2, 1.0e-8], seed: "
      "77}\n";
  const std::string tuned = kTwo + tuning;
  const CompareResult both = run(load(tuned));
  const fs::path kept = folder_ / "kept.json";
  save_compare_result(both, kept);
  fs::remove_all(folder_ / "run");
  const std::string earlier = "compare.earlier=[" + kept.string() + "]";
  const CompareResult three = run(load(tuned, {earlier, "compare.seeds=[7, 0, 1]"}));
  EXPECT_EQ(labels_.size(), 2u) << "seed 7 of two variants, no trials";
  ASSERT_EQ(three.origins.size(), 1u);
  EXPECT_EQ(three.origins[0].seeds, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(three.origins[0].variants, (std::vector<std::string>{"focal", "standard"}));
  EXPECT_EQ(three.origins[0].code_version, both.code_version);
  EXPECT_EQ(three.tuning.size(), 6u);
  for (size_t v = 0; v < 2; ++v) {
    const std::vector<CompareRun>& runs = three.variants[v].runs;
    ASSERT_EQ(runs.size(), 3u);
    EXPECT_EQ(runs[0].seed, 7);
    EXPECT_EQ(runs[1].validation_bits_per_byte, both.variants[v].runs[0].validation_bits_per_byte);
    EXPECT_EQ(three.variants[v].config, both.variants[v].config);
  }
  EXPECT_EQ(three.variants[1].summary.pairs, 3);
  // A third file keeps what was told about the first.
  save_compare_result(three, kept);
  const CompareResult four = run(load(tuned, {earlier, "compare.seeds=[0, 1, 7]"}));
  EXPECT_TRUE(labels_.empty());
  ASSERT_EQ(four.origins.size(), 2u);
  EXPECT_EQ(four.origins[1].seeds, (std::vector<int64_t>{7}));
  EXPECT_EQ(four.variants[1].summary.p, three.variants[1].summary.p);
  // Two machines at once: each file has seeds of its own.
  const fs::path other = folder_ / "other.json";
  save_compare_result(both, other);
  save_compare_result(run(load(tuned, {"compare.seeds=[5]"})), kept);
  const CompareResult joined =
      run(load(tuned, {"compare.earlier=[" + other.string() + ", " + kept.string() + "]",
                       "compare.seeds=[0, 1, 5]"}));
  EXPECT_TRUE(labels_.empty());
  ASSERT_EQ(joined.origins.size(), 2u);
  EXPECT_EQ(joined.origins[0].seeds, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(joined.origins[1].seeds, (std::vector<int64_t>{5}));
  EXPECT_EQ(joined.variants[1].summary.pairs, 3);
  EXPECT_EQ(origin_sentence(joined).find(" of "), std::string::npos);
  // A variant that the file lacks is trained here, and the sentence says so.
  const std::string deeper = "    - name: deeper\n      set: {model.layers: 2}\n";
  const CompareResult more =
      run(load(kTwo + deeper + tuning,
               {"compare.earlier=[" + other.string() + "]", "compare.only=[deeper]"}));
  EXPECT_EQ(labels_.size(), 3u + 2u) << "three trials, two seeds";
  EXPECT_NE(origin_sentence(more).find("seeds 0, 1 of standard: "), std::string::npos)
      << origin_sentence(more);
}

TEST_F(CompareTest, AnEarlierFileOfAnotherComparisonIsRefused) {
  const fs::path kept = folder_ / "kept.json";
  save_compare_result(run(load(kTwo)), kept);
  const std::string earlier = "compare.earlier=[" + kept.string() + "]";
  const auto refused = [&](const std::string& compare, const std::vector<std::string>& overrides,
                           const std::string& word) {
    EXPECT_ERROR(InputError, run(load(compare, overrides)), word);
  };
  refused(kTwo, {earlier, "train.steps=5"}, "amount of the budget is '128', here it is '160'");
  refused(kTwo, {earlier, "train.dtype=bfloat16"}, "train.dtype is 'float32'");
  refused(kTwo, {earlier, "model.width=32"}, "parameters; it has");
  refused(kTwo, {earlier, "compare.reference=focal"}, "reference is 'standard'");
  refused(R"(  seeds: [0, 1]
  variants:
    - name: standard
    - name: focal
      set: {model.attention.temperature.value: 0.5}
)",
          {earlier}, "value=0.5'; it sets 'model.attention.temperature.value=0.4'");
  write_file(folder_ / "text" / "more.txt", std::string(4000, 'x'));
  refused(kTwo, {earlier}, "fingerprint of the text");
  EXPECT_TRUE(labels_.empty()) << "refused before the training";
}

TEST_F(CompareTest, ATuningThatJudgesItselfOrHasNoChoiceIsRefused) {
  const auto config = [&](const std::string& tuning) {
    read_compare_config(load(kTwo + tuning).compare);
  };
  EXPECT_ERROR(ConfigError, config("  tuning: {key: train.z_loss, values: [0, 1], seed: 9}\n"),
               "three values");
  EXPECT_ERROR(ConfigError, config("  tuning: {key: train.z_loss, values: [0, 1, 2], seed: 1}\n"),
               "compare.tuning.seed", "got 1");
}

/// As many threads as a test asks for, while it lives.
struct Threads {
  int before = at::get_num_threads();
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
};

TEST_F(CompareTest, AutoTrainsSmallModelsSideBySideAndOthersInTurn) {
  const Threads four(4);
  const auto choice = [&](const std::vector<std::string>& overrides) {
    const LoadedRecipe loaded = load(std::string(kTwo) + "  sweep: {train.z_loss: [0, 0.1]}\n",
                                     overrides);  // 4 variants, 2 seeds
    const CompareConfig config = read_compare_config(loaded.compare);
    return choose_workers(config, plan_runs(loaded, config, "", 259), 259);
  };
  const WorkerChoice small = choice({});  // train.threads is 1
  EXPECT_EQ(small.workers, 4);
  EXPECT_EQ(small.sentence(8), "8 runs, 4 at a time, one thread each (compare.workers: auto)");
  EXPECT_EQ(choice({"train.threads=0"}).workers, 4);
  EXPECT_EQ(choice({"compare.workers=3"}).workers, 3);
  EXPECT_EQ(choice({"compare.workers=100"}).workers, 8);
  const auto in_turn = [&](const std::vector<std::string>& overrides, int64_t threads,
                           const std::string& reason) {
    const WorkerChoice chosen = choice(overrides);
    EXPECT_EQ(chosen.workers, 1) << reason;
    EXPECT_EQ(chosen.threads, threads) << reason;
    EXPECT_EQ(chosen.reason, reason);
  };
  in_turn({"compare.workers=1", "train.threads=0"}, 4, "compare.workers");
  in_turn({"train.threads=2"}, 2, "train.threads");
  in_turn({"train.threads=0", "model.width=512", "model.layers=16"}, 4,
          "models of over 10.0 M parameters");
  in_turn({"train.steps=0", "train.seconds=60", "compare.budget=time"}, 1, "a budget of time");
  const Threads one(1);
  in_turn({"train.threads=0"}, 1, "the program has one thread");
}

TEST_F(CompareTest, WorkersTakeNoMoreMemoryThanThereIs) {
  const Threads many(64);
  const auto choice = [&](const std::vector<std::string>& overrides) {
    const LoadedRecipe loaded = load(std::string(kTwo), overrides);
    const CompareConfig config = read_compare_config(loaded.compare);
    return choose_workers(config, plan_runs(loaded, config, "", 259), 259);
  };
  EXPECT_ERROR(MemoryError,
               choice({"compare.workers=4", "model.width=16384", "model.layers=96",
                       "model.heads=128", "model.ffn_width=65536"}),
               "4 workers need", "compare.workers");
  // A small model whose activations alone need more than half of any machine.
  const WorkerChoice large =
      choice({"model.width=256", "model.layers=4", "train.batch_rows=1048576"});
  EXPECT_EQ(large.workers, 1);
  EXPECT_EQ(large.reason, "two would take over half of the memory");
}

TEST_F(CompareTest, EveryRecipeOfTheRepositoryCanBePlanned) {
  int comparisons = 0;
  for (const char* folder : {"recipes", "recipes/laptop", "recipes/lecture", "recipes/retrofit"}) {
    for (const fs::directory_entry& file :
         fs::directory_iterator(fs::path(FOVEA_SOURCE_DIR) / folder)) {
      if (file.path().extension() != ".yaml") continue;
      const LoadedRecipe loaded = load_recipe(file.path());
      if (loaded.compare.kind != ConfigNode::Kind::map) continue;
      const CompareConfig config = read_compare_config(loaded.compare);
      const auto runs = plan_runs(loaded, config, "text", 259);
      EXPECT_EQ(runs.size(), config.variants.size() * config.seeds.size()) << file.path();
      for (const PlannedRun& run : runs)
        EXPECT_GT(parameter_count(run.recipe.model.resolved(259)), 0) << file.path();
      ++comparisons;
    }
  }
  EXPECT_GE(comparisons, 20);
}

TEST_F(CompareTest, MistakesAreNamedBeforeTraining) {
  const auto message = [&](const std::string& compare) {
    try {
      run(load(compare));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message("  variants:\n    - name: a\n      set: {model.layrs: 2}\n")
                .find("did you mean 'layers'"),
            std::string::npos);
  EXPECT_NE(message("  variants: []\n").find("at least one variant"), std::string::npos);
  EXPECT_NE(message("  variants:\n    - name: a\n    - name: a\n").find("two variants"),
            std::string::npos);
  EXPECT_NE(message("  reference: b\n  variants:\n    - name: a\n").find("compare.reference"),
            std::string::npos);
  EXPECT_NE(message("  budget: time\n  variants:\n    - name: a\n").find("train.seconds"),
            std::string::npos);
  EXPECT_NE(message("  variants:\n    - name: ../a\n").find("folder"), std::string::npos);
  EXPECT_NE(message("  varients:\n    - name: a\n").find("did you mean 'variants'"),
            std::string::npos);
  EXPECT_NE(
      message("  variants:\n    - name: a\n      set: {model.heads: 3}\n").find("model.heads"),
      std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "run" / "runs"));
}

}  // namespace
}  // namespace fovea::compare_test
