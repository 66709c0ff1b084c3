// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/runtime/gloo_communicator.h"
#include "fovea/runtime/interrupt.h"
#include "fovea/runtime/rank_place.h"
#include "fovea/runtime/spawn.h"

namespace fovea {
namespace {

constexpr std::chrono::seconds kStopByThemselves{10};
constexpr int kLookAtRanksEveryMs = 20;

/// A private folder that goes with its owner.
class PrivateFolder {
 public:
  PrivateFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "fovea-ranks-XXXXXX").string();
    require<IoError>(::mkdtemp(name.data()) != nullptr, "ranks", "cannot make a folder '{}': {}",
                     name, std::strerror(errno));
    path_ = name;
  }
  ~PrivateFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// An open file that goes with its owner.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : number_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {
    require<IoError>(number_ >= 0, "ranks", "cannot open '{}': {}", path, std::strerror(errno));
  }
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

struct RankProcess {
  pid_t pid = -1;
  std::optional<int> status;  // of waitpid, once it has ended
  std::string errors;         // the file of its stderr; "" for rank 0

  bool runs() const { return !status.has_value(); }
  bool killed() const { return status && WIFSIGNALED(*status); }
  int code() const { return WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status); }
};

class RankProcesses {
 public:
  RankProcesses(int64_t count, const std::vector<std::string>& command, int64_t threads)
      : ranks_(static_cast<size_t>(count)) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) start(rank, command, threads);
  }
  ~RankProcesses() {
    signal(SIGKILL);
    for (RankProcess& rank : ranks_)
      if (rank.runs() && rank.pid > 0) ::waitpid(rank.pid, nullptr, 0);
  }

  RanksEnd wait(const std::atomic<bool>* stop) {
    using Clock = std::chrono::steady_clock;
    std::optional<Clock::time_point> deadline;
    while (look()) {
      if (stop != nullptr && stop->load() && !passed_on_) {
        signal(stop_signal());
        passed_on_ = true;
      }
      if (cause_ && !deadline) deadline = Clock::now() + kStopByThemselves;
      if (deadline && Clock::now() > *deadline) {
        ended_ = true;
        signal(SIGKILL);
      }
      ::poll(nullptr, 0, kLookAtRanksEveryMs);  // a signal ends it
    }
    return end();
  }

 private:
  void start(size_t rank, const std::vector<std::string>& command, int64_t threads) {
    RankProcess& process = ranks_[rank];
    if (rank > 0) process.errors = (folder_.path() / fmt::format("stderr.{}", rank)).string();
    const Descriptor nothing("/dev/null", O_RDWR);
    const Descriptor errors(rank > 0 ? process.errors : "/dev/null", O_WRONLY | O_CREAT);
    process.pid = spawn("ranks", {.arguments = command,
                                  .variables = variables(rank, threads),
                                  .in = nothing.number(),
                                  .out = rank > 0 ? nothing.number() : -1,
                                  .err = rank > 0 ? errors.number() : -1,
                                  .own_group = true});
  }

  std::vector<std::string> variables(size_t rank, int64_t threads) const {
    const RankPlace place{.launcher = RankPlace::Launcher::processes,
                          .rank = static_cast<int64_t>(rank),
                          .size = std::ssize(ranks_),
                          .file = (folder_.path() / "store").string(),
                          .parent = ::getpid()};
    std::vector<std::string> own = rank_variables(place);
    if (std::getenv("OMP_NUM_THREADS") == nullptr)
      own.push_back(fmt::format("OMP_NUM_THREADS={}", threads));
    return own;
  }

  void signal(int number) const {
    for (const RankProcess& rank : ranks_)
      if (rank.runs() && rank.pid > 0) ::kill(rank.pid, number);
  }

  /// Notes who has ended; whether some still run.
  bool look() {
    bool some = false;
    for (size_t n = 0; n < ranks_.size(); ++n) {
      RankProcess& rank = ranks_[n];
      int status = 0;
      if (rank.runs() && ::waitpid(rank.pid, &status, WNOHANG) == rank.pid) {
        rank.status = status;
        if (!ended_) note(n);
      }
      some = some || rank.runs();
    }
    return some;
  }

  /// The first death is the cause, unless it only followed from one that is seen later.
  void note(size_t n) {
    const RankProcess& rank = ranks_[n];
    if (rank.code() == 0) return;
    const auto follows = [&](size_t other) { return ranks_[other].code() == kLostRank; };
    if (!cause_ || (follows(*cause_) && !follows(n))) cause_ = n;
    // Where all refuse for the same reason, rank 0 has told it.
    if (n == 0 && !follows(0) && !ranks_[*cause_].killed()) cause_ = 0;
  }

  RanksEnd end() const {
    if (!cause_) return {};
    const RankProcess& rank = ranks_[*cause_];
    const std::string who =
        fmt::format("rank {} of {} (process {})", *cause_, ranks_.size(), rank.pid);
    if (rank.killed() && passed_on_ && WTERMSIG(*rank.status) == stop_signal())
      return {.exit_code = kInterrupted, .message = "stopped before the training had begun"};
    if (rank.killed())
      return {
          .exit_code = kLostRank,
          .message = fmt::format("{} was killed by signal {} ({}); all ranks have ended. "
                                 "Checkpoints are whole: the same command goes on, also with "
                                 "another number of processes",
                                 who, WTERMSIG(*rank.status), ::strsignal(WTERMSIG(*rank.status)))};
    if (*cause_ == 0) return {.exit_code = rank.code(), .message = {}};
    return {.exit_code = rank.code(),
            .message = fmt::format("{} ended with exit code {}: {}", who, rank.code(),
                                   last_words(rank.errors))};
  }

  static std::string last_words(const std::string& file) {
    std::string text = std::filesystem::exists(file) ? read_file(file) : "";
    while (!text.empty() && text.back() == '\n') text.pop_back();
    text = text.substr(text.rfind('\n') + 1);  // npos + 1 is 0
    return text.empty() ? "it said nothing" : text;
  }

  static constexpr int kInterrupted = 130;
  static inline const int kLostRank = LostRankError("").exit_code();

  PrivateFolder folder_;
  std::vector<RankProcess> ranks_;
  std::optional<size_t> cause_;
  bool passed_on_ = false;  // the signal that this process received
  bool ended_ = false;      // by this process
};

}  // namespace

RanksEnd run_rank_processes(int64_t count, const std::vector<std::string>& command, int64_t threads,
                            const std::atomic<bool>* stop) {
  // Rank 0 writes to the terminal from a group in the background.
  std::signal(SIGTTOU, SIG_IGN);
  return RankProcesses(count, command, threads).wait(stop);
}

}  // namespace fovea
