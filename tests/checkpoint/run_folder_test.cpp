// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"

namespace fovea::run_folder_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::SmallDisk;
using testing::TemporaryFolder;

class RunFolder : public ::testing::Test {
 protected:
  fs::path save(int64_t step, const std::string& content = "weights") {
    return save_checkpoint(folder_.path(), step, {{"step", step}},
                           [&](const fs::path& folder) { write_file(folder / "w.bin", content); });
  }
  std::vector<int64_t> steps() {
    std::vector<int64_t> out;
    for (const CheckpointEntry& entry : list_checkpoints(folder_.path())) out.push_back(entry.step);
    return out;
  }
  TemporaryFolder folder_;
};

TEST_F(RunFolder, ACheckpointStandsUnderItsStepInTenDigits) {
  EXPECT_EQ(save(1000), folder_.path() / "checkpoints" / "0000001000");
  EXPECT_EQ(load_checkpoint_state(folder_.path() / "checkpoints" / "0000001000")["step"], 1000);
}

TEST_F(RunFolder, CheckpointsAreListedByStepAndForeignNamesAreNot) {
  save(20);
  save(3);
  fs::create_directories(folder_.path() / "checkpoints" / "notes");
  fs::create_directories(folder_.path() / "checkpoints" / "0000000009.damaged");
  EXPECT_THAT(steps(), ElementsAre(3, 20));
  EXPECT_TRUE(list_checkpoints(folder_ / "nowhere").empty());
}

TEST_F(RunFolder, TruncatedChangedAndMissingFilesAreNamed) {
  const fs::path a = save(1), b = save(2), c = save(3), d = save(4);
  fs::resize_file(a / "w.bin", 3);
  std::ofstream(b / "w.bin") << "weightz";
  fs::remove(c / "w.bin");
  fs::resize_file(d / "state.json", 20);
  EXPECT_ERROR(CheckpointError, load_checkpoint_state(a), "w.bin", "7 bytes", "3");
  EXPECT_ERROR(CheckpointError, load_checkpoint_state(b), "w.bin", "not what was written");
  EXPECT_ERROR(CheckpointError, load_checkpoint_state(c), "w.bin", "missing");
  EXPECT_ERROR(CheckpointError, load_checkpoint_state(d), "state.json");
  EXPECT_ERROR(CheckpointError, load_checkpoint_state(folder_ / "x"), "state.json", "missing");
}

TEST_F(RunFolder, EveryFlippedBitIsFoundAndItsFileNamed) {
  const fs::path a = save(1, "sixteen bytes...");
  EXPECT_TRUE(checkpoint_damage(a).empty());
  const std::string good = read_file(a / "w.bin");
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    write_file(a / "w.bin", bad);
    EXPECT_THAT(checkpoint_damage(a), ElementsAre(::testing::HasSubstr("w.bin"))) << bit;
  }
  fs::remove(a / "state.json");
  EXPECT_THAT(checkpoint_damage(a), ElementsAre(::testing::HasSubstr("state.json")));
}

TEST_F(RunFolder, ADamagedNewestCheckpointFallsBackToTheOneBeforeAndSaysSo) {
  save(1);
  const fs::path second = save(2);
  fs::resize_file(second / "w.bin", 1);
  const auto found = find_valid_checkpoint(folder_.path());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->checkpoint.step, 1);
  EXPECT_EQ(found->state["step"], 1);
  EXPECT_THAT(found->damaged, ElementsAre(::testing::HasSubstr("0000000002")));

  set_aside_newer_checkpoints(folder_.path(), 1);
  EXPECT_THAT(steps(), ElementsAre(1));
  EXPECT_TRUE(fs::exists(folder_.path() / "checkpoints" / "0000000002.damaged"));
}

TEST_F(RunFolder, OnlyDamagedCheckpointsAreAnErrorAndNotABeginning) {
  fs::resize_file(save(1) / "w.bin", 0);
  EXPECT_ERROR(CheckpointError, find_valid_checkpoint(folder_.path()), "no checkpoint", "w.bin");
  EXPECT_FALSE(find_valid_checkpoint(folder_ / "empty").has_value());
}

TEST_F(RunFolder, AStateThatItsReaderCannotUseFallsBackLikeABrokenFile) {
  save(1);
  save(2);
  const auto found = find_valid_checkpoint(folder_.path(), [](const FoundCheckpoint& checkpoint) {
    require<CheckpointError>(checkpoint.state["step"] != 2, "state", "no use");
  });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->checkpoint.step, 1);
  EXPECT_THAT(found->damaged, ElementsAre(::testing::HasSubstr("no use")));
}

TEST_F(RunFolder, ADamagedCheckpointIsNoModelAndARunSaysThatItTookAnOlderOne) {
  const fs::path first = save(1), second = save(2);
  fs::resize_file(second / "w.bin", 1);
  EXPECT_ERROR(CheckpointError, resolve_model_folder(second), "w.bin", "7 bytes");
  std::vector<std::string> warnings;
  const auto warn = [&](std::string_view text) { warnings.emplace_back(text); };
  EXPECT_EQ(resolve_model_folder(folder_.path(), warn), first);
  EXPECT_THAT(warnings,
              ElementsAre(::testing::HasSubstr("falling back to the checkpoint of step 1")));
  write_file(first / "optimizer.safetensors", "");
  fs::remove(first / "state.json");
  EXPECT_ERROR(CheckpointError, resolve_model_folder(first), "'state.json' is missing");
}

TEST_F(RunFolder, PruningKeepsTheNewestAndRemovesWhatACrashedWriterLeft) {
  for (const int64_t step : {1, 2, 3, 4}) save(step);
  fs::create_directories(folder_.path() / "checkpoints" / ".0000000005.tmp-77");
  prune_checkpoints(folder_.path(), 2);
  EXPECT_THAT(steps(), ElementsAre(3, 4));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path() / "checkpoints"), {}), 2);
}

TEST_F(RunFolder, AFullDiskLeavesTheCheckpointsThatWereThere) {
  save(1);
  {
    const SmallDisk disk(1000);
    EXPECT_ERROR(IoError, save(2, std::string(5000, 'x')), "w.bin");
  }
  EXPECT_THAT(steps(), ElementsAre(1));
  EXPECT_EQ(find_valid_checkpoint(folder_.path())->checkpoint.step, 1);
}

TEST_F(RunFolder, ACheckpointOfTheSameStepIsReplaced) {
  save(1, "first");
  save(1, "second");
  EXPECT_EQ(read_file(folder_.path() / "checkpoints" / "0000000001" / "w.bin"), "second");
}

TEST_F(RunFolder, AModelIsFoundInARunACheckpointAndAModelFolder) {
  const fs::path checkpoint = save_checkpoint(folder_.path(), 1, {}, [](const fs::path& folder) {
    write_file(folder / "config.json", "{}");
  });
  EXPECT_EQ(resolve_model_folder(folder_.path()), checkpoint);
  EXPECT_EQ(resolve_model_folder(checkpoint), checkpoint);
  fs::create_directories(folder_ / "empty");
  EXPECT_ERROR(CheckpointError, resolve_model_folder(folder_ / "empty"), "config.json");
  EXPECT_ERROR(CheckpointError, resolve_model_folder(folder_ / "none"), "no such folder");
  write_file(folder_ / "empty/config.yaml", "");
  EXPECT_ERROR(CheckpointError, resolve_model_folder(folder_ / "empty"), "no checkpoint yet");
}

}  // namespace
}  // namespace fovea::run_folder_test
