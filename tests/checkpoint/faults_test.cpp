// A save under faults of the system: killed at every call, a full or read-only disk, calls that
// fall short. Nothing that was saved may be lost, and the next save must succeed.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/checkpoint/safetensors.h"
#include "tests/checkpoint/faulty_system.h"

namespace fovea::faults_test {
namespace {

namespace fs = std::filesystem;
using testing::Fault;

constexpr int kKeep = 2;

class Faults : public ::testing::Test {
 protected:
  // What a run does at a checkpoint: save, then remove old ones.
  void save(int64_t step) const {
    save_checkpoint(run_, step, {{"step", step}}, [&](const fs::path& folder) {
      write_safetensors(folder / "model.safetensors", {{"w", weights_ + step}});
      write_file(folder / "config.json", "{}");
    });
    prune_checkpoints(run_, kKeep);
  }

  Faults() {
    save(1);
    save(2);
    fs::copy(run_, before_, fs::copy_options::recursive);
  }

  void restore() const {
    fs::remove_all(run_);
    fs::copy(before_, run_, fs::copy_options::recursive);
  }

  enum Ended { saved = 0, io_error = 3, other_error = 4, killed = 128 + SIGKILL };
  /// Saves step 3 in a child process that suffers `fault`; `message_` is its error.
  int save_in_child(const Fault& fault) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(suffer(fault));
    int status = 0;
    ::waitpid(child, &status, 0);
    message_ = fs::exists(folder_ / "message") ? read_file(folder_ / "message") : "";
    fs::remove(folder_ / "message");
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  int suffer(const Fault& fault) const {
    int code = saved;
    std::string message;
    testing::arm(fault);
    try {
      save(3);
    } catch (const IoError& error) {
      code = io_error;
      message = error.what();
    } catch (const std::exception& error) {
      code = other_error;
      message = error.what();
    }
    testing::arm({});
    if (!message.empty()) write_file(folder_ / "message", message);
    return code;
  }

  void expect_nothing_lost(int code, const std::string& where) {
    const auto found = find_valid_checkpoint(run_);
    ASSERT_TRUE(found.has_value()) << where;
    EXPECT_TRUE(found->damaged.empty()) << where;
    const int64_t step = found->checkpoint.step;
    EXPECT_TRUE(step == 2 || step == 3) << where << ": step " << step;
    if (code == saved) {
      EXPECT_EQ(step, 3) << where;
    }
    EXPECT_TRUE(
        at::equal(SafetensorsFile(found->checkpoint.folder / "model.safetensors").tensor("w"),
                  weights_ + step))
        << where;
    save(4);  // goes on as if nothing had been
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(RunPaths{run_}.checkpoints()))
      names.push_back(entry.path().filename().string());
    EXPECT_EQ(names.size(), kKeep) << where << ": " << fmt::format("{}", fmt::join(names, " "));
    EXPECT_EQ(find_valid_checkpoint(run_)->checkpoint.step, 4) << where;
  }

  // In memory where the system has such a folder: every save syncs a dozen times.
  struct Folder {
    fs::path path =
        (fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) /
        fmt::format("fovea-faults-{}", ::getpid());
    Folder() { fs::create_directories(path); }
    ~Folder() { fs::remove_all(path); }
    fs::path operator/(const char* name) const { return path / name; }
  } folder_;
  const fs::path run_ = folder_ / "run", before_ = folder_ / "before";
  const at::Tensor weights_ = at::arange(1000, at::kFloat);
  std::string message_;
};

TEST_F(Faults, KilledAtAnySystemCallOfASaveNothingIsLost) {
  int at = 1;
  for (;; ++at) {
    restore();
    const int code = save_in_child({.kind = Fault::Kind::kill, .at = at});
    expect_nothing_lost(code, fmt::format("killed at call {}", at));
    if (code != killed) {
      EXPECT_EQ(code, saved) << message_;
      break;
    }
    ASSERT_LT(at, 500);
  }
  EXPECT_GT(at, 30) << "the calls are not seen any more";
}

TEST_F(Faults, AnyCallThatFailsIsAnIoErrorOrHarmless) {
  for (int at = 1;; ++at) {
    restore();
    const int code = save_in_child({.kind = Fault::Kind::error, .at = at, .error = EIO});
    const std::string where = fmt::format("call {} failed: {}", at, message_);
    EXPECT_TRUE(code == saved || code == io_error) << where;
    if (code == io_error) {
      EXPECT_THAT(message_, ::testing::HasSubstr(run_.string())) << where;
    }
    expect_nothing_lost(code, where);
    ASSERT_LT(at, 500);
    if (at > 80 && code == saved) break;  // behind the last call
  }
}

TEST_F(Faults, ADiskThatIsFullOrReadOnlyFromAnyMomentOnLosesNothingAndSaysSo) {
  for (const auto& [kind, sign] : {std::pair{Fault::Kind::full, "free space"},
                                   std::pair{Fault::Kind::read_only, "ead-only"}}) {
    for (int at = 1; at < 80; at += 3) {
      restore();
      const int code = save_in_child({.kind = kind, .at = at});
      const std::string where = fmt::format("from call {} on: {}", at, message_);
      EXPECT_TRUE(code == saved || code == io_error) << where;
      if (code == io_error) {
        EXPECT_THAT(message_, ::testing::HasSubstr(sign)) << where;
      }
      if (at == 1) {
        EXPECT_EQ(code, io_error) << where;
      }
      expect_nothing_lost(code, where);
    }
  }
}

TEST_F(Faults, ShortAndInterruptedCallsChangeNothing) {
  EXPECT_EQ(save_in_child({.kind = Fault::Kind::short_calls}), saved) << message_;
  expect_nothing_lost(saved, "short calls");
  const pid_t child = ::fork();
  if (child == 0) {
    testing::arm({.kind = Fault::Kind::short_calls});
    const bool whole = find_valid_checkpoint(run_)->checkpoint.step == 4;
    ::_exit(!whole ? 1 : testing::calls_made() < 6 ? 2 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace fovea::faults_test
