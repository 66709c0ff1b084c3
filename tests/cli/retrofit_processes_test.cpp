// A retrofit on several processes: the steps of one, another number of them after a kill, and
// refusals.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "fovea/checkpoint/model_folder.h"
#include "fovea/report/metrics_log.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace fovea::testing::retrofit_processes_test {
namespace {

using ::testing::HasSubstr;

class RetrofitProcesses : public ::testing::Test {
 protected:
  RetrofitProcesses() {
    setenv("FOVEA_CACHE", (folder_ / "cache").c_str(), 1);
    spill(folder_ / "text.txt", numbered_lines());
    ModelConfig config = tiny_config();
    config.context = 64;
    config.kv_heads = config.heads;  // differential pairs key heads
    save_model(folder_ / "base", Transformer(config.resolved(config.vocab_size), 1),
               *byte_tokenizer());
  }
  std::vector<std::string> command(const std::string& out, int64_t processes,
                                   const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"retrofit",
                                 (folder_ / "base").string(),
                                 "model.attention.focus.window=2",
                                 "model.attention.focus.groups=4",
                                 "model.attention.focus.top_k=1",
                                 "model.attention.focus.sinks=1",
                                 "train.batch_rows=4",
                                 "train.log_interval=1",
                                 "train.dtype=float32",
                                 "train.device=cpu",
                                 "--text",
                                 (folder_ / "text.txt").string(),
                                 "--out",
                                 (folder_ / out).string(),
                                 "--length=32",
                                 "--tokens=128",
                                 "--copy=8",
                                 "--no-speed"};
    all.insert(all.end(), more.begin(), more.end());
    if (std::ranges::none_of(more, [](const auto& m) { return m.starts_with("--steps"); }))
      all.emplace_back("--steps=20");
    if (processes > 1) all.push_back("--processes=" + std::to_string(processes));
    return all;
  }
  Finished retrofit(const std::string& out, int64_t processes,
                    const std::vector<std::string>& more = {}) const {
    return Program(folder_.path(), kBinary, command(out, processes, more)).finish();
  }
  /// Of all phases, in the order of their names.
  std::vector<double> losses(const std::string& out) const {
    std::vector<std::filesystem::path> logs;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / out))
      if (entry.path().filename() == "metrics.jsonl") logs.push_back(entry.path());
    std::ranges::sort(logs);
    std::vector<double> all;
    for (const auto& log : logs)
      for (const auto& line : read_metrics(log)) all.push_back(line.at("loss/out").get<double>());
    return all;
  }
  void expect_same_losses(const std::string& one, const std::string& other, size_t count) const {
    const std::vector<double> a = losses(one), b = losses(other);
    ASSERT_EQ(a.size(), count) << one;
    ASSERT_EQ(b.size(), count) << other;
    for (size_t n = 0; n < count; ++n)
      ASSERT_NEAR(a[n], b[n], 1e-6 * a[n]) << one << ", " << other << ", step " << n + 1;
  }
  bool has_checkpoint(const std::string& out) const {
    std::error_code none;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(folder_ / out / "phases", none)) {
      const auto folder = entry.path().parent_path().filename();
      if (folder == "checkpoints" && !entry.path().filename().string().starts_with('.'))
        return true;
    }
    return false;
  }

  static inline const std::string kBinary = FOVEA_BINARY_DIR "/bin/fovea";
  TemporaryFolder folder_;
};

TEST_F(RetrofitProcesses, TheLossesOfSeveralAreThoseOfOneInEveryPhase) {
  struct Case {
    std::string name, with;
    std::vector<std::string> more;
    size_t phases;
  };
  const Case cases[] = {{"focus", "focus", {"--distill"}, 2},
                        {"differential", "differential", {}, 1},
                        {"lora", "multi_token,lora", {}, 1}};
  for (const Case& c : cases) {
    std::vector<std::string> more = c.more;
    more.insert(more.end(), {"--with", c.with});
    const Finished one = retrofit(c.name + "1", 1, more), two = retrofit(c.name + "2", 2, more);
    ASSERT_EQ(one.code, 0) << one.err;
    ASSERT_EQ(two.code, 0) << two.err;
    EXPECT_THAT(two.err, HasSubstr("2 ranks (--processes)"));
    expect_same_losses(c.name + "1", c.name + "2", 20 * c.phases);
    EXPECT_TRUE(std::filesystem::exists(folder_ / (c.name + "2/retrofit.json")));
  }
}

TEST_F(RetrofitProcesses, AKilledProcessEndsAllAndOtherNumbersGoOnWithTheSameLosses) {
  const std::vector<std::string> saving{"--with", "lora", "train.checkpoint_interval=5",
                                        "train.schedule.kind=constant",
                                        "train.schedule.warmup_fraction=0"};
  const auto with_steps = [&](const char* steps) {
    std::vector<std::string> more = saving;
    more.emplace_back(steps);
    return more;
  };
  Program program(folder_.path(), kBinary, command("parts", 2, with_steps("--steps=100000")));
  ASSERT_TRUE(program.until([&] { return has_checkpoint("parts"); })) << program.finish().err;
  const std::vector<pid_t> ranks = program.children();
  ASSERT_EQ(ranks.size(), 2U);
  kill(ranks[1], SIGKILL);
  const Finished killed = program.finish();
  EXPECT_EQ(killed.code, 75) << killed.err;
  ASSERT_LT(losses("parts").size(), 200U);
  const Finished resumed = retrofit("parts", 3, with_steps("--steps=200"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("continuing"));
  ASSERT_EQ(retrofit("whole", 1, with_steps("--steps=200")).code, 0);
  expect_same_losses("whole", "parts", 200);
}

TEST_F(RetrofitProcesses, FewerRowsThanRanksAreRefusedWithTheRemedy) {
  const Finished few = retrofit("few", 2, {"--with", "lora", "train.batch_rows=1"});
  EXPECT_EQ(few.code, 2);
  EXPECT_THAT(few.err, HasSubstr("got 1 rows and 2 ranks: add train.batch_rows=2"));
}

}  // namespace
}  // namespace fovea::testing::retrofit_processes_test
