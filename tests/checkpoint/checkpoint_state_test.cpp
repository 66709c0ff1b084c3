// state.json: what is noticed of a change in it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/checkpoint_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/checkpoint/run_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::checkpoint_state_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class CheckpointStateTest : public ::testing::Test {
 protected:
  fs::path save(int64_t step) {
    return save_checkpoint(
        folder_.path(), step, {{"run", {{"step", step}}}, {"loader", {3, 4}}},
        [&](const fs::path& folder) { write_file(folder / "w.bin", "weights"); });
  }
  /// state.json without a checksum of itself, as format 1 had it, after `change`.
  template <class Change>
  static void write_old(const fs::path& checkpoint, Change&& change) {
    Json whole = Json::parse(read_file(checkpoint / kStateFile));
    whole.erase("checksum");
    whole["format"] = 1;
    change(whole);
    write_file(checkpoint / kStateFile, whole.dump(2) + "\n");
  }
  testing::TemporaryFolder folder_;
};

TEST_F(CheckpointStateTest, EveryFlippedBitIsNoticed) {
  const fs::path checkpoint = save(10);
  const std::string whole = read_file(checkpoint / kStateFile);
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    std::ofstream(checkpoint / kStateFile, std::ios::binary) << flipped;  // without a sync each
    EXPECT_THROW(load_checkpoint_state(checkpoint), CheckpointError) << bit << ": " << flipped;
  }
  write_file(checkpoint / kStateFile, whole);
  EXPECT_EQ(load_checkpoint_state(checkpoint)["run"]["step"], 10);
}

TEST_F(CheckpointStateTest, AnEmptyOrMissingListOfFilesIsDamage) {
  const fs::path checkpoint = save(10);
  for (const Json& files : {Json::object(), Json(nullptr), Json::array(), Json("w.bin")}) {
    write_old(checkpoint, [&](Json& whole) { whole["files"] = files; });
    EXPECT_ERROR(CheckpointError, load_checkpoint_state(checkpoint), "lists no files");
    EXPECT_EQ(checkpoint_damage(checkpoint).size(), 1U);
  }
  write_old(checkpoint, [&](Json& whole) { whole["files"] = {{"w.bin", nullptr}}; });
  EXPECT_ERROR(CheckpointError, load_checkpoint_state(checkpoint), "'w.bin'", "damaged");
}

TEST_F(CheckpointStateTest, AFileThatIsNotListedIsNotTrusted) {
  const fs::path checkpoint = save(10);
  write_file(checkpoint / "notes.txt", "read by nobody");
  EXPECT_NO_THROW(load_checkpoint_state(checkpoint));
  write_file(checkpoint / "model.safetensors.index.json", "{}");
  EXPECT_ERROR(CheckpointError, load_checkpoint_state(checkpoint), "index.json", "not listed");
}

TEST_F(CheckpointStateTest, TheStepIsThatOfTheFolder) {
  const fs::path checkpoint = save(10), other = checkpoint.parent_path() / "0000000011";
  fs::copy(checkpoint, other);
  EXPECT_ERROR(CheckpointError, load_checkpoint_state(other), "step 11", "got 10");
  EXPECT_ERROR(CheckpointError, load_checkpoint_state(other / ""), "step 11", "got 10");
  fs::rename(other, folder_ / "best");
  EXPECT_NO_THROW(load_checkpoint_state(folder_ / "best"));
}

TEST_F(CheckpointStateTest, AFileOfTheOlderFormatIsReadWithAWarning) {
  const fs::path checkpoint = save(10);
  std::vector<std::string> warnings;
  const WarningSink warn = [&](std::string_view text) { warnings.emplace_back(text); };
  load_checkpoint_state(checkpoint, warn);
  EXPECT_TRUE(warnings.empty());
  write_old(checkpoint, [](Json&) {});
  EXPECT_EQ(load_checkpoint_state(checkpoint, warn)["run"]["step"], 10);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("older version")));
  write_old(checkpoint, [](Json& whole) { whole["format"] = 3; });
  EXPECT_ERROR(CheckpointError, load_checkpoint_state(checkpoint), "format 2", "got 3");
}

}  // namespace
}  // namespace fovea::checkpoint_state_test
