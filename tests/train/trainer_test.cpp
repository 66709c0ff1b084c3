// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/trainer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "fovea/base/error.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/checkpoint/safetensors.h"
#include "fovea/report/metrics_log.h"
#include "fovea/runtime/machine.h"
#include "fovea/runtime/memory_limit.h"
#include "fovea/runtime/memory_shortage.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_disk.h"
#include "tests/support/small_memory.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace fovea::trainer_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::tiny_recipe;

class TrainerTest : public ::testing::Test {
 protected:
  Recipe recipe() { return tiny_recipe(folder_.path()); }
  TrainCallbacks noting() {
    TrainCallbacks callbacks;
    callbacks.message = [this](std::string_view text) { messages_.emplace_back(text); };
    return callbacks;
  }
  std::vector<nlohmann::ordered_json> metrics() {
    return read_metrics(folder_ / "run/metrics.jsonl");
  }
  std::vector<int64_t> checkpoint_steps() {
    std::vector<int64_t> out;
    for (const auto& entry : list_checkpoints(folder_ / "run")) out.push_back(entry.step);
    return out;
  }
  testing::TemporaryFolder folder_;
  std::vector<std::string> messages_;
};

TEST_F(TrainerTest, ARunLearnsAndItsFolderHoldsEverything) {
  Recipe r = recipe();
  r.train.steps = 40;
  r.train.checkpoint_interval = 15;
  r.train.evaluation_interval = 20;
  std::vector<double> losses;
  TrainCallbacks callbacks;
  callbacks.step = [&](const TrainProgress& p) { losses.push_back(p.loss); };
  int evaluations = 0;
  callbacks.evaluation = [&](int64_t, const EvaluationResult&) { ++evaluations; };
  const TrainResult result = Trainer(r, callbacks).run();

  EXPECT_EQ(result.steps, 40);
  EXPECT_EQ(result.tokens, 40 * 2 * 16);
  EXPECT_NEAR(losses.front(), std::log(259.0), 0.7);
  EXPECT_LT(losses.back(), losses.front() - 1.0);
  EXPECT_LT(result.evaluation.total().loss(), losses.front() - 1.0);
  EXPECT_EQ(evaluations, 2);
  EXPECT_GT(result.peak_memory_bytes, 1 << 20);
  EXPECT_EQ(result.dtype, "float32");
  EXPECT_THAT(checkpoint_steps(), ::testing::ElementsAre(30, 40));
  EXPECT_EQ(result.checkpoint, folder_ / "run/checkpoints/0000000040");
  for (const char* name : {"config.yaml", "run.json", "tensorboard", "metrics.jsonl"}) {
    EXPECT_TRUE(fs::exists(folder_ / "run" / name)) << name;
  }
  const auto info = nlohmann::json::parse(read_file(folder_ / "run/run.json"));
  for (const char* key : {"cpu", "fovea", "torch", "seed", "data", "parameters"}) {
    EXPECT_TRUE(info.contains(key)) << key;
  }
}

TEST_F(TrainerTest, EveryLineOfMetricsHasTheKeysOfTheDesign) {
  Recipe r = recipe();
  r.train.log_interval = 5;
  r.model.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  Trainer(r).run();
  const auto lines = metrics();
  ASSERT_EQ(lines.size(), 3u);  // 5, 10 and the last, 12
  for (const auto& line : lines) {
    for (const char* key :
         {"global_step", "loss/out", "optim/lr", "optim/grad_norm", "optim/total_tokens",
          "speed/tokens_per_second", "speed/curr_iter_time", "speed/data_load_time", "speed/FLOPS",
          "memory/peak_bytes", "attention/path", "focal/temperature", "focal/clipped_share",
          "logits/ln_z", "logits/ln_z_rms"}) {
      EXPECT_TRUE(line.contains(key)) << key;
    }
    EXPECT_EQ(line["focal/temperature"].size(), 2u);
  }
  EXPECT_FALSE(lines[0].contains("loss/val/made"));
  EXPECT_TRUE(lines[2].contains("loss/val/made"));
  EXPECT_TRUE(lines[2].contains("perplexity/val_mean"));
  EXPECT_TRUE(lines[2].contains("bits_per_byte/val/made"));
}

TEST_F(TrainerTest, LnZIsLoggedAndZLossPullsItTowardsZero) {
  const auto ln_z_rms = [&](double z_loss, const std::string& name) {
    Recipe r = recipe();
    r.train.steps = 40;
    r.train.z_loss = z_loss;
    r.run_folder = (folder_ / name).string();
    Trainer(r).run();
    const auto lines = read_metrics(folder_ / name / "metrics.jsonl");
    // Before the first step logits are near N(0, 1): Z is V times the mean of e^z.
    EXPECT_NEAR(lines.front()["logits/ln_z"].get<double>(), std::log(259.0) + 0.5, 0.3);
    const double rms = lines.back()["logits/ln_z_rms"];
    EXPECT_GE(rms, std::abs(lines.back()["logits/ln_z"].get<double>()));
    return rms;
  };
  EXPECT_LT(ln_z_rms(1.0, "with"), ln_z_rms(0.0, "without") - 1.0);
}

TEST_F(TrainerTest, AccumulationGivesTheStepOfOneLargeBatch) {
  // Text whose rows hold different numbers of targets: per-micro-batch means would differ.
  Recipe large = recipe(), small = recipe();
  large.train.steps = small.train.steps = 3;
  large.train.batch_rows = 4;
  small.train.batch_rows = 1;
  small.train.accumulation = 4;
  small.run_folder = (folder_ / "run2").string();
  Trainer a(large), b(small);
  const TrainResult one = a.run(), four = b.run();
  EXPECT_EQ(one.tokens, four.tokens);
  EXPECT_NEAR(one.loss, four.loss, 1e-5);
  for (const Parameter& parameter : a.model().parameters().all()) {
    const at::Tensor other = b.model().parameters().find(parameter.name)->value;
    EXPECT_LT((parameter.value - other).abs().max().item<double>(), 2e-4) << parameter.name;
  }
}

TEST_F(TrainerTest, ARunGoesOnWithTheSameNumbersOnEveryDevice) {
  std::vector<DeviceChoice> devices = {DeviceChoice::cpu};
  if (choose_device(DeviceChoice::automatic).is_cuda()) devices.push_back(DeviceChoice::cuda);
  std::vector<TrainResult> results;
  for (const DeviceChoice device : devices) {
    Recipe r = recipe();
    r.run_folder = (folder_ / fmt::format("run-{}", static_cast<int>(device))).string();
    r.train.device = device;
    r.train.steps = 6;
    Trainer(r).run();
    r.train.steps = 12;
    Trainer again(r);
    EXPECT_EQ(again.step(), 6);
    EXPECT_EQ(again.model().device().is_cuda(), device == DeviceChoice::cuda);
    results.push_back(again.run());
    EXPECT_EQ(results.back().steps, 12);
    EXPECT_GT(results.back().peak_memory_bytes, 0);
    EXPECT_NEAR(results.back().evaluation.total().loss(), results.front().evaluation.total().loss(),
                1e-2);
  }
}

TEST_F(TrainerTest, RecomputingActivationsDoesNotChangeTheNumbers) {
  Recipe kept = recipe(), recomputed = recipe();
  kept.model.dropout = recomputed.model.dropout = 0.1;
  recomputed.run_folder = (folder_ / "run2").string();
  recomputed.train.gradient_checkpointing = true;
  EXPECT_EQ(Trainer(kept).run().loss, Trainer(recomputed).run().loss);
}

TEST_F(TrainerTest, Bfloat16LearnsLikeFloat32OnFloat32Masters) {
  Recipe wide = recipe(), narrow = recipe();
  narrow.run_folder = (folder_ / "run2").string();
  narrow.train.dtype = DtypeChoice::bfloat16;
  Trainer trainer(narrow);
  const TrainResult a = Trainer(wide).run(), b = trainer.run();
  EXPECT_EQ(b.dtype, "bfloat16");
  EXPECT_NE(a.loss, b.loss);
  EXPECT_NEAR(a.loss, b.loss, 0.1);
  EXPECT_EQ(trainer.model().parameters().all().front().value.scalar_type(), at::kFloat);
}

TEST_F(TrainerTest, TheMeanPerplexityIsUnweightedOverSources) {
  EvaluationResult result;
  result.sources = {{"a", 10 * std::log(4.0), 10, 10}, {"b", 990 * std::log(8.0), 990, 1980}};
  EXPECT_NEAR(result.mean_perplexity(), 6.0, 1e-9);
  EXPECT_NEAR(result.sources[1].bits_per_byte(), 1.5, 1e-12);
  EXPECT_NEAR(result.total().loss(), (10 * std::log(4.0) + 990 * std::log(8.0)) / 1000, 1e-12);
  const EvaluationResult read = EvaluationResult::from_json(result.to_json());
  EXPECT_EQ(read.sources[1].nll, result.sources[1].nll);
}

TEST_F(TrainerTest, ABatchOfWholeRowsScoresTheSameWithAndWithoutItsDocumentTable) {
  const Transformer model(recipe().model.resolved(259), 1);
  Batch batch{.rows = 1,
              .length = 8,
              .tokens = {256, 1, 2, 3, 4, 5, 6, 7},
              .targets = {1, 2, 3, 4, 5, 6, 7, 8}};
  batch.documents.assign(8, 0);
  batch.positions = {0, 1, 2, 3, 4, 5, 6, 7};
  const ModelInput plain = model_input(batch, at::kCPU);
  EXPECT_FALSE(plain.documents_bt.defined());
  ModelInput full = plain;
  full.documents_bt = at::zeros({1, 8}, at::kLong);
  full.positions_bt = at::arange(8, at::kLong).unsqueeze(0);
  const at::Tensor targets = target_tensor(batch, at::kCPU);
  EXPECT_TRUE(
      at::allclose(model.token_nll(plain, targets), model.token_nll(full, targets), 1e-5, 1e-6));
  batch.documents.back() = 1;
  batch.positions.back() = 0;
  EXPECT_TRUE(model_input(batch, at::kCPU).documents_bt.defined());
}

TEST_F(TrainerTest, EverySourceIsEvaluatedByName) {
  Recipe r = recipe();
  testing::write_text(folder_ / "other", 30, "attention");
  r.data.sources.resize(2);
  r.data.sources[1].path = (folder_ / "other").string();
  r.data.sources[1].name = "second";
  const TrainResult result = Trainer(r).run();
  ASSERT_EQ(result.evaluation.sources.size(), 2u);
  EXPECT_TRUE(metrics().back().contains("loss/val/second"));
}

TEST_F(TrainerTest, ATimeBudgetEndsByTheClock) {
  Recipe r = recipe();
  r.train.steps = 0;
  r.train.seconds = 0.15;
  const TrainResult result = Trainer(r).run();
  EXPECT_GE(result.seconds, 0.15);
  EXPECT_GE(result.steps, 1);
}

TEST_F(TrainerTest, NotANumberStopsTheRunOrSkipsTheStep) {
  Recipe r = recipe();
  r.train.optimizer.learning_rate = 1e30;
  r.train.optimizer.clip = 0;
  r.train.schedule.warmup_steps = 0;
  r.train.checkpoint_interval = 1;
  EXPECT_ERROR(NumericalError, Trainer(r).run(), "not finite", "learning_rate",
               "checkpoint is of step");
  ASSERT_FALSE(checkpoint_steps().empty());

  Recipe skipping = r;
  skipping.run_folder = (folder_ / "run2").string();
  skipping.train.nan_policy = NanPolicy::skip;
  const TrainResult result = Trainer(skipping, noting()).run();
  EXPECT_EQ(result.steps, 12);
  EXPECT_GT(result.skipped_steps, 0);
  EXPECT_THAT(messages_, Contains(HasSubstr("skipped")));
  skipping.run_folder = (folder_ / "run3").string();
  skipping.train.steps = 100;
  EXPECT_ERROR(NumericalError, Trainer(skipping).run(), "steps before");
}

TEST_F(TrainerTest, AFinishedRunReturnsItsResultWithoutTraining) {
  const TrainResult first = Trainer(recipe()).run();
  TrainCallbacks callbacks;
  callbacks.step = [](const TrainProgress&) { ADD_FAILURE() << "trained again"; };
  const TrainResult second = Trainer(recipe(), callbacks).run();
  EXPECT_EQ(second.steps, first.steps);
  EXPECT_EQ(second.loss, first.loss);
  EXPECT_EQ(second.evaluation.total().nll, first.evaluation.total().nll);
  EXPECT_EQ(second.attention_path, first.attention_path);
  EXPECT_EQ(metrics().size(), 12u);
}

TEST_F(TrainerTest, ARunStartsFromTheWeightsOfAnother) {
  const TrainResult first = Trainer(recipe()).run();
  Recipe r = recipe();
  r.run_folder = (folder_ / "run2").string();
  r.train.init_from = (folder_ / "run").string();
  r.train.optimizer.learning_rate = 0.0;
  r.train.steps = 1;
  const TrainResult second = Trainer(r).run();
  EXPECT_NEAR(second.evaluation.total().nll, first.evaluation.total().nll, 1e-6);
  r.train.init_from = (folder_ / "nothing").string();
  r.run_folder = (folder_ / "run3").string();
  EXPECT_ERROR(CheckpointError, Trainer(r), "nothing");
}

// F-9: from the standard temperature to the recipe's while the learning rate rises.
TEST_F(TrainerTest, ATemperatureMovesFromOneOverTheWarmUp) {
  Recipe r = recipe();
  r.train.temperature_ramp = true;
  EXPECT_ERROR(ConfigError, Trainer(r), "temperature_ramp", "temperature.value");
  r.model.attention.spec.temperature.value = 0.4;
  r.train.schedule.warmup_steps = 4;
  r.train.checkpoint_interval = 2;
  r.train.keep_checkpoints = 9;
  const TrainResult result = Trainer(r).run();
  const auto lines = metrics();
  for (const auto& [line, expected] :
       {std::pair{0, 1.0}, {1, 0.85}, {3, 0.55}, {4, 0.4}, {11, 0.4}})
    EXPECT_NEAR(lines[line]["focal/temperature"][0].get<double>(), expected, 1e-12) << line;
  // A checkpoint has the temperature that its last step was trained with.
  for (const auto& [name, expected] : {std::pair{"0000000002", 0.85}, {"0000000004", 0.55}}) {
    const auto folder = result.checkpoint.parent_path() / name;
    EXPECT_NEAR(load_model_config(folder).attention.spec.temperature.value, expected, 1e-12)
        << name;
  }
  EXPECT_EQ(load_model_config(result.checkpoint).attention.spec.temperature.value, 0.4);
}

TEST_F(TrainerTest, StagesChangeThetaLengthAndDecayAndKeepTheWeights) {
  Recipe r = recipe();
  r.train.steps = 0;
  r.train.stages = {{.name = "short", .steps = 6, .sequence_length = 8},
                    {.name = "long",
                     .steps = 4,
                     .sequence_length = 32,
                     .batch_rows = 1,
                     .rope_theta = 5e5,
                     .learning_rate = 1e-3,
                     .weight_decay = 0.0,
                     .carry_optimizer = true}};
  Trainer trainer(r, noting());
  const TrainResult result = trainer.run();
  EXPECT_EQ(result.steps, 10);
  EXPECT_EQ(result.tokens, 6 * 2 * 8 + 4 * 32);
  EXPECT_EQ(trainer.model().config().rope.theta, 5e5);
  EXPECT_EQ(trainer.model().config().context, 32);
  EXPECT_EQ(load_model_config(result.checkpoint).context, 32);
  EXPECT_THAT(messages_, Contains(HasSubstr("'long' begins at step 6")));
  const auto lines = metrics();
  EXPECT_EQ(lines[5]["stage"], "short");
  EXPECT_EQ(lines[6]["stage"], "long");
  EXPECT_LE(lines[7]["optim/lr"].get<double>(), 1e-3);
  // A carried optimizer goes on counting; a fresh one begins at the stage.
  EXPECT_EQ(
      SafetensorsFile(result.checkpoint / "optimizer.safetensors").tensor("step").item<int64_t>(),
      10);
  r.run_folder = (folder_ / "run2").string();
  r.train.stages[1].carry_optimizer = false;
  EXPECT_EQ(SafetensorsFile(Trainer(r).run().checkpoint / "optimizer.safetensors")
                .tensor("step")
                .item<int64_t>(),
            4);
}

TEST_F(TrainerTest, AnotherRecipeOrCorpusInTheSameRunFolderIsRefusedByName) {
  Trainer(recipe()).run();
  Recipe r = recipe();
  r.train.seed = 4;
  r.model.layers = 3;
  EXPECT_ERROR(ConfigError, Trainer(r), "train.seed: 4, was 0", "model.layers: 3, was 2",
               "run_folder");
  Recipe text = recipe();
  testing::write_text(folder_ / "other", 40, "attention");
  text.data.sources[0].path = (folder_ / "other").string();
  EXPECT_ERROR(ConfigError, Trainer(text), "another corpus", "made");
  Recipe moved = recipe();  // the same text elsewhere is the same corpus
  testing::write_text(folder_ / "copy");
  moved.data.sources[0].path = (folder_ / "copy").string();
  EXPECT_NO_THROW(Trainer{moved});
}

TEST_F(TrainerTest, ResumePoliciesAreKept) {
  Recipe r = recipe();
  r.train.resume = ResumePolicy::must;
  EXPECT_ERROR(ConfigError, Trainer(r), "must", "no checkpoint");
  Trainer(recipe()).run();
  EXPECT_EQ(Trainer(r).step(), 12);
  r.train.resume = ResumePolicy::never;
  EXPECT_ERROR(ConfigError, Trainer(r), "never", "run_folder");
}

TEST_F(TrainerTest, ATruncatedNewestCheckpointFallsBackAndSaysSo) {
  Recipe r = recipe();
  r.train.checkpoint_interval = 5;
  Trainer(r).run();
  const auto whole = read_file(folder_ / "run/checkpoints/0000000012/model.safetensors");
  fs::resize_file(folder_ / "run/checkpoints/0000000012/model.safetensors", 100);
  Trainer trainer(r, noting());
  EXPECT_EQ(trainer.step(), 10);
  EXPECT_THAT(messages_,
              Contains(::testing::AllOf(HasSubstr("model.safetensors"), HasSubstr("step 10"))));
  EXPECT_EQ(metrics().back()["global_step"], 10);
  trainer.run();
  EXPECT_EQ(read_file(folder_ / "run/checkpoints/0000000012/model.safetensors"), whole);
}

TEST_F(TrainerTest, ASecondTrainerInTheSameFolderIsRefused) {
  const Trainer first(recipe());
  EXPECT_ERROR(LockedError, Trainer(recipe()), "in use by process");
}

TEST_F(TrainerTest, AFullDiskIsAnIoErrorAndTheLastCheckpointStays) {
  Recipe r = recipe();
  r.train.steps = 4;
  Trainer(r).run();
  r.train.steps = 8;
  Trainer trainer(r);
  {
    const testing::SmallDisk disk(20000);
    EXPECT_ERROR(IoError, trainer.run(), "cannot write");
  }
  EXPECT_THAT(checkpoint_steps(), ::testing::ElementsAre(4));
  EXPECT_NO_THROW(load_checkpoint_state(folder_ / "run/checkpoints/0000000004"));
}

TEST_F(TrainerTest, AFolderThatCannotBeWrittenIsAnIoError) {
  Recipe r = recipe();
  r.run_folder = "/proc/fovea-run";
  EXPECT_ERROR(IoError, Trainer(r), "/proc/fovea-run");
}

TEST_F(TrainerTest, AFileInPlaceOfTheRunFolderIsAnIoError) {
  Recipe r = recipe();
  write_file(folder_ / "run", "not a folder");
  EXPECT_ERROR(IoError, Trainer(r), "run");
}

TEST_F(TrainerTest, AModelTooLargeForTheMachineIsAMemoryErrorWithTheSize) {
  Recipe r = recipe();
  r.model.vocab_size = 4'000'000;
  r.model.width = 128;  // 2 GB of embedding
  const testing::SmallMemory memory(512 << 20);
  EXPECT_ERROR(MemoryError, Trainer(r), "not enough memory", "train.batch_rows");
}

TEST_F(TrainerTest, ATrainingThatNoMemoryHoldsIsRefusedBeforeItsTextIsRead) {
  Recipe r = recipe();
  r.model.context = int64_t{1} << 31;
  r.data.sources[0].path = (folder_ / "missing").string();
  EXPECT_ERROR(MemoryError, Trainer(r), "not enough memory", "GB", "this machine has",
               "train.batch_rows");
}

TEST_F(TrainerTest, TextShorterThanARowIsAnInputError) {
  Recipe r = recipe();
  write_file(folder_ / "short.txt", "too short");
  r.data.sources[0].path = (folder_ / "short.txt").string();
  r.model.context = 4096;
  EXPECT_THROW(Trainer{r}, InputError);
  r.data.sources[0].path = (folder_ / "missing").string();
  EXPECT_ERROR(InputError, Trainer(r), "missing");
}

TEST(Machine, WhatItsMemoryCannotHoldIsRefusedWithBothSizes) {
  EXPECT_GT(memory_limit_bytes(), 0);
  EXPECT_NO_THROW(require_memory("little", 1e6));
  try {
    require_memory("a planet", 1e18);
    ADD_FAILURE() << "it was held";
  } catch (const MemoryNeeded& error) {
    EXPECT_NE(std::string(error.what()).find("1.0e+09 GB for a planet, this machine has"),
              std::string::npos)
        << error.what();
    EXPECT_EQ(memory_shortage(), error.what());
  }
}

TEST(Machine, PeakMemoryFallsWhenItIsReset) {
  {
    at::Tensor large = at::ones({64 << 20}, at::kByte);
    EXPECT_GT(peak_memory_bytes(), 64 << 20);
  }
  const int64_t before = peak_memory_bytes();
  reset_peak_memory();
  EXPECT_LT(peak_memory_bytes(), before - (32 << 20));
}

TEST(Machine, CudaIsChosenWhereItIsAndRefusedWhereItIsNot) {
  if (choose_device(DeviceChoice::automatic).is_cuda()) {
    EXPECT_TRUE(choose_device(DeviceChoice::cuda).is_cuda());
  } else {
    EXPECT_ERROR(ConfigError, choose_device(DeviceChoice::cuda), "train.device");
  }
  EXPECT_EQ(choose_dtype(DtypeChoice::automatic, at::kCPU),
            cpu_has_bfloat16() ? at::kBFloat16 : at::kFloat);
}

}  // namespace
}  // namespace fovea::trainer_test
