// Signals and damaged checkpoints: what a run does about them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/runtime/interrupt.h"
#include "fovea/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace fovea::interrupted_run_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using testing::tiny_recipe;

class InterruptedRun : public ::testing::Test {
 protected:
  InterruptedRun() { std::signal(SIGHUP, SIG_DFL); }  // nohup hands an ignored one down
  Recipe recipe() { return tiny_recipe(folder_.path()); }
  TrainCallbacks noting() {
    TrainCallbacks callbacks;
    callbacks.message = [this](std::string_view text) { messages_.emplace_back(text); };
    return callbacks;
  }
  std::vector<int64_t> checkpoint_steps() {
    std::vector<int64_t> out;
    for (const auto& entry : list_checkpoints(folder_ / "run")) out.push_back(entry.step);
    return out;
  }
  testing::TemporaryFolder folder_;
  std::vector<std::string> messages_;
};

TEST_F(InterruptedRun, ASignalSavesAndLeavesAndTheNextRunContinues) {
  Recipe r = recipe();
  for (const int signal : {SIGTERM, SIGHUP}) {
    const InterruptGuard guard;
    TrainCallbacks callbacks;
    callbacks.stop = guard.flag();
    const int64_t at = signal == SIGTERM ? 5 : 7;
    callbacks.step = [&](const TrainProgress& p) {
      if (p.step == at) std::raise(signal);
    };
    Trainer trainer(r, callbacks);
    EXPECT_ERROR(Interrupted, trainer.run(), "step " + std::to_string(at), "saved");
    EXPECT_EQ(stop_signal(), signal);
  }
  EXPECT_THAT(checkpoint_steps(), ::testing::ElementsAre(5, 7));
  Trainer again(r, noting());
  EXPECT_EQ(again.step(), 7);
  EXPECT_THAT(messages_, Contains(HasSubstr("step 7")));
  EXPECT_EQ(again.run().steps, 12);
}

TEST_F(InterruptedRun, ASignalWhileTheTextIsReadLeavesNothingBehind) {
  const std::atomic<bool> stop{true};
  TrainCallbacks callbacks;
  callbacks.stop = &stop;
  EXPECT_ERROR(Interrupted, Trainer(recipe(), callbacks), "nothing had begun");
  EXPECT_TRUE(checkpoint_steps().empty());
  EXPECT_EQ(Trainer(recipe()).run().steps, 12);
}

TEST_F(InterruptedRun, SeveralHangupsAreOneAndThoseThatNohupIgnoresAreNone) {
  {
    const InterruptGuard guard;
    std::raise(SIGHUP);
    std::raise(SIGHUP);
    std::raise(SIGTERM);
    EXPECT_TRUE(guard.flag()->load());
    EXPECT_EQ(stop_signal(), SIGHUP);
  }
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const InterruptGuard guard;
    std::raise(SIGHUP);
    EXPECT_FALSE(guard.flag()->load());
  }
  EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN);
}

// A state.json of the older format has no checksum of itself, so each value is looked at.
TEST_F(InterruptedRun, ABrokenStateFallsBackToTheCheckpointBefore) {
  Recipe r = recipe();
  r.train.checkpoint_interval = 6;
  r.train.keep_checkpoints = 2;
  Trainer(r).run();
  const auto file = folder_ / "run/checkpoints/0000000012/state.json";
  auto whole = nlohmann::ordered_json::parse(read_file(file));
  whole.erase("checksum");
  whole["format"] = 1;
  for (const auto& [pointer, value] : std::vector<std::pair<std::string, nlohmann::ordered_json>>{
           {"/state/corpus", nullptr},
           {"/state/corpus/fingerprint", 5},
           {"/state/loader/rows", nullptr},
           {"/state/recipe", 5},
           {"/state/run/step", 11},
           {"/state/run/tokens", -1},
           {"/state/run", nlohmann::ordered_json::array()},
           {"/state/run/evaluation", 5}}) {
    std::filesystem::copy(folder_ / "run", folder_ / "copy",
                          std::filesystem::copy_options::recursive);
    auto changed = whole;
    changed[nlohmann::ordered_json::json_pointer(pointer)] = value;
    write_file(folder_ / "copy/checkpoints/0000000012/state.json", changed.dump());
    Recipe again = r;
    again.run_folder = (folder_ / "copy").string();
    messages_.clear();
    EXPECT_EQ(Trainer(again, noting()).step(), 6) << pointer;
    EXPECT_THAT(messages_, Contains(HasSubstr("falling back to the checkpoint of step 6")));
    std::filesystem::remove_all(folder_ / "copy");
  }
}

TEST_F(InterruptedRun, ADamagedCheckpointIsNoBeginningAndAWarningIsNoMessage) {
  Recipe r = recipe();
  r.train.checkpoint_interval = 6;
  r.train.keep_checkpoints = 2;
  const TrainResult first = Trainer(r).run();
  std::string bytes = read_file(first.checkpoint / "model.safetensors");
  bytes.back() ^= 1;
  write_file(first.checkpoint / "model.safetensors", bytes);
  Recipe second = recipe();
  second.run_folder = (folder_ / "run2").string();
  second.train.init_from = first.checkpoint.string();
  EXPECT_ERROR(CheckpointError, Trainer(second), "model.safetensors", "not what was written");
  second.train.init_from = (folder_ / "run").string();
  TrainCallbacks callbacks = noting();
  std::vector<std::string> warnings;
  callbacks.warning = [&](std::string_view text) { warnings.emplace_back(text); };
  Trainer(second, callbacks);
  EXPECT_THAT(warnings, ::testing::ElementsAre(HasSubstr("falling back")));
  EXPECT_THAT(messages_, ::testing::Each(::testing::Not(HasSubstr("falling back"))));
}

}  // namespace
}  // namespace fovea::interrupted_run_test
