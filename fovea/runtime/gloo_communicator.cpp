// The only source that reads headers of c10d.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/gloo_communicator.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Flags.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "fovea/base/files.h"
#include "fovea/runtime/ring_gather.h"

C10_DECLARE_int(caffe2_log_level);

namespace fovea {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using StorePointer = c10::intrusive_ptr<c10d::Store>;

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

std::string rank_list(const std::vector<int64_t>& ranks, int64_t size) {
  return fmt::format("{} {} of {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                     size);
}

/// c10d prints its errors with the stack; here they are exceptions.
void silence_c10d() {
  constexpr int kFatal = 3;
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = kFatal;
}

StorePointer open_store(const RankPlace& place, const RankTimes& times) {
  silence_c10d();
  const bool serves = place.rank == 0 && !place.agent_serves;
  const std::string where = fmt::format("{}:{}", place.address, place.port);
  try {
    StorePointer store;
    if (!place.file.empty()) {
      store = c10::make_intrusive<c10d::FileStore>(place.file, static_cast<int>(place.size));
    } else {
      c10d::TCPStoreOptions options;
      options.port = static_cast<uint16_t>(place.port);
      options.isServer = serves;
      options.waitWorkers = false;
      options.timeout = times.meeting;
      store = c10::make_intrusive<c10d::TCPStore>(place.address, options);
    }
    store->setTimeout(times.meeting);
    return c10::make_intrusive<c10d::PrefixStore>(fmt::format("fovea/{}", place.attempt), store);
  } catch (const std::exception& error) {
    fail<LostRankError>(
        "ranks", "rank {} of {} cannot {} ({}); check MASTER_ADDR and MASTER_PORT: {}", place.rank,
        place.size, serves ? "serve " + where : "reach rank 0 at " + where,
        first_line(error.what()),
        serves ? "the address must be this machine's and the port free" : "rank 0 must run there");
  }
}

/// What the ranks tell each other beside their exchanges: that they live, and how far they are.
class SignsOfLife {
 public:
  SignsOfLife(StorePointer store, const RankPlace& place, const RankTimes& times)
      : store_(std::move(store)), place_(place), times_(times) {}
  ~SignsOfLife() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  /// Returns when all have come. LostRankError with those that have not.
  void meet() {
    store_->set("here/" + std::to_string(place_.rank), "1");
    const auto deadline = Clock::now() + times_.meeting;
    for (std::vector<int64_t> away;; std::this_thread::sleep_for(Milliseconds(20))) {
      away.clear();
      for (int64_t rank = 0; rank < place_.size; ++rank)
        if (!store_->check({"here/" + std::to_string(rank)})) away.push_back(rank);
      if (away.empty()) break;
      require<LostRankError>(Clock::now() < deadline, "ranks",
                             "{} did not come within {} s; check that the launcher has started {} "
                             "processes that reach the same address",
                             rank_list(away, place_.size), times_.meeting.count() / 1000,
                             place_.size);
    }
    thread_ = std::thread([this] { beat(); });
  }

  void count_exchange() { ++exchanges_; }

  /// The ranks that have gone, hang or stay behind, after an exchange that failed; the first rank
  /// to ask decides for all.
  std::string verdict() {
    try {
      if (store_->check({"verdict"})) return store_->get_to_str("verdict");
      const std::vector<std::string> before = beats();
      std::this_thread::sleep_for(times_.sign_of_life);
      if (store_->check({"verdict"})) return store_->get_to_str("verdict");
      const std::string found = judge(before, beats());
      store_->set("verdict", found);
      return found;
    } catch (const std::exception&) {
      return place_.file.empty() && !place_.agent_serves
                 ? fmt::format("rank 0 of {}, where the ranks meet, has ended", place_.size)
                 : "the place where the ranks meet has gone";
    }
  }

 private:
  void beat() {
    const std::string key = "beat/" + std::to_string(place_.rank);
    const Milliseconds interval = times_.sign_of_life / 3;
    std::unique_lock lock(mutex_);
    for (int64_t n = 0; !over_; ++n) {
      lock.unlock();
      try {
        store_->set(key, fmt::format("{} {}", exchanges_.load(), n));
      } catch (const std::exception&) {
        return;  // rank 0 has gone: the next exchange says so
      }
      lock.lock();
      wake_.wait_for(lock, interval, [this] { return over_; });
    }
  }

  std::vector<std::string> beats() {
    std::vector<std::string> all;
    for (int64_t rank = 0; rank < place_.size; ++rank) {
      const std::string key = "beat/" + std::to_string(rank);
      all.push_back(store_->check({key}) ? store_->get_to_str(key) : "");
    }
    return all;
  }

  std::string judge(const std::vector<std::string>& before, const std::vector<std::string>& now) {
    std::vector<int64_t> silent, behind, exchanges;
    exchanges.reserve(now.size());
    for (const std::string& beat : now) exchanges.push_back(std::atoll(beat.c_str()));
    const int64_t most = *std::ranges::max_element(exchanges);
    for (size_t rank = 0; rank < now.size(); ++rank) {
      if (static_cast<int64_t>(rank) == place_.rank) continue;
      if (now[rank] == before[rank]) silent.push_back(static_cast<int64_t>(rank));
      if (exchanges[rank] < most) behind.push_back(static_cast<int64_t>(rank));
    }
    if (!silent.empty()) return fmt::format("{} has died or hangs", rank_list(silent, place_.size));
    if (!behind.empty())
      return fmt::format("{} lives, but stays behind the others", rank_list(behind, place_.size));
    return "all ranks live, but the connection between two of them broke";
  }

  StorePointer store_;
  RankPlace place_;
  RankTimes times_;
  std::atomic<int64_t> exchanges_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

/// The process group, which can tell the others at once that this rank gives up.
class GlooGroup final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void close_connections() {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

c10::intrusive_ptr<GlooGroup> connect(const StorePointer& store, const RankPlace& place,
                                      const RankTimes& times) {
  auto options = c10d::ProcessGroupGloo::Options::create(times.meeting);
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
  const bool named = interface != nullptr && *interface != '\0';
  try {
    options->devices.push_back(named ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                               : place.one_machine
                                   ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                   : c10d::ProcessGroupGloo::createDefaultDevice());
    auto group = c10::make_intrusive<GlooGroup>(store, static_cast<int>(place.rank),
                                                static_cast<int>(place.size), options);
    group->setTimeout(times.exchange);
    return group;
  } catch (const std::exception& error) {
    fail<LostRankError>("ranks",
                        "rank {} of {} cannot connect to the others ({}); name the network "
                        "interface that they share with GLOO_SOCKET_IFNAME, for example eth0",
                        place.rank, place.size, first_line(error.what()));
  }
}

class GlooRanks final : public Communicator, public RingGather {
 public:
  using Communicator::max;
  using Communicator::sum;

  GlooRanks(const RankPlace& place, const RankTimes& times)
      : place_(place), store_(open_store(place, times)), signs_(store_, place, times) {
    signs_.meet();
    group_ = connect(store_, place, times);
  }

  int64_t rank() const override { return place_.rank; }
  int64_t size() const override { return place_.size; }

  void sum(std::span<double> values) override { reduce(values, c10d::ReduceOp::SUM); }
  void max(std::span<double> values) override { reduce(values, c10d::ReduceOp::MAX); }
  void sum(std::span<const at::Tensor> tensors) override {
    in_buckets(tensors, [&](at::Tensor& flat) {
      std::vector<at::Tensor> whole{flat};
      exchange([&] { return group_->allreduce(whole); });
    });
  }
  void broadcast(std::span<const at::Tensor> tensors, int64_t from) override {
    c10d::BroadcastOptions options;
    options.rootRank = from;
    in_buckets(tensors, [&](at::Tensor& flat) {
      std::vector<at::Tensor> whole{flat};
      exchange([&] { return group_->broadcast(whole, options); });
    });
  }
  void ring_gather(const at::Tensor& rows) override {
    const at::NoGradGuard no_grad;
    // Gloo copies what it gathers: a bucket at a time.
    const int64_t length = rows.size(1);
    const int64_t columns =
        std::max<int64_t>(1, ring_bytes(size()) / (size() * rows.element_size()));
    for (int64_t begin = 0; begin < length; begin += columns) {
      const at::Tensor block = rows.narrow(1, begin, std::min(columns, length - begin));
      std::vector<std::vector<at::Tensor>> out{block.unbind(0)};
      std::vector<at::Tensor> own{out[0][static_cast<size_t>(rank())]};
      exchange([&] { return group_->allgather(out, own); });
    }
  }
  void barrier() override {
    double nothing = 0.0;
    sum(std::span(&nothing, 1));
  }

 private:
  void reduce(std::span<double> values, c10d::ReduceOp::RedOpType operation) {
    if (values.empty()) return;
    c10d::AllreduceOptions options;
    options.reduceOp = operation;
    std::vector<at::Tensor> whole{at::from_blob(
        values.data(), {static_cast<int64_t>(values.size())}, at::TensorOptions(at::kDouble))};
    exchange([&] { return group_->allreduce(whole, options); });
  }

  /// Calls run(flat) for runs of tensors of one dtype as one vector each, and copies it back.
  template <class F>
  void in_buckets(std::span<const at::Tensor> tensors, const F& run) {
    const at::NoGradGuard no_grad;
    const int64_t bucket_bytes = ring_bytes(size());
    for (size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
      int64_t bytes = 0;
      for (end = begin; end < tensors.size(); ++end) {
        const at::Tensor& next = tensors[end];
        const auto size = static_cast<int64_t>(next.nbytes());
        const bool fits = next.scalar_type() == tensors[begin].scalar_type() &&
                          next.device() == tensors[begin].device() && bytes + size <= bucket_bytes;
        if (end > begin && !fits) break;
        bytes += size;
      }
      if (bytes > 0) run_bucket(tensors.subspan(begin, end - begin), run);
    }
  }
  template <class F>
  static void run_bucket(std::span<const at::Tensor> tensors, const F& run) {
    const at::Tensor& first = tensors.front();
    if (tensors.size() == 1 && first.is_contiguous() && first.is_cpu()) {
      at::Tensor flat = first.detach().view(-1);
      return run(flat);
    }
    std::vector<at::Tensor> parts;
    for (const at::Tensor& tensor : tensors) parts.push_back(tensor.detach().reshape(-1));
    at::Tensor flat = at::cat(parts).cpu();
    run(flat);
    int64_t at = 0;
    for (const at::Tensor& tensor : tensors) {
      tensor.detach().copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
      at += tensor.numel();
    }
  }

  template <class F>
  void exchange(const F& begin) {
    std::string reason;
    try {
      signs_.count_exchange();
      begin()->wait();
      return;
    } catch (const std::exception& error) {
      reason = first_line(error.what());
    }
    group_->close_connections();  // the others stop waiting for this rank
    fail<LostRankError>("ranks",
                        "rank {} stopped: {} ({}). Checkpoints are whole: the same command goes "
                        "on, also with another number of ranks",
                        place_.rank, signs_.verdict(), reason);
  }

  RankPlace place_;
  StorePointer store_;
  SignsOfLife signs_;
  c10::intrusive_ptr<GlooGroup> group_;
};

/// IoError where the connections do not compute.
void test_connections(Communicator& ranks) {
  const auto size = static_cast<double>(ranks.size()), rank = static_cast<double>(ranks.rank());
  bool right = ranks.sum(rank + 1.0) == size * (size + 1.0) / 2.0 && ranks.max(rank) == size - 1.0;
  constexpr int64_t kNumbers = 1000;
  const at::Tensor numbers = at::arange(kNumbers, at::kFloat);
  right = right && ranks.sum(numbers).equal(numbers * size);
  const at::Tensor last = numbers + rank;
  ranks.broadcast(std::span(&last, 1), ranks.size() - 1);
  right = right && last.equal(numbers + (size - 1.0));
  require<IoError>(!ranks.any(!right), "ranks",
                   "expected the sums of {} ranks to be right; got other numbers: the machines, "
                   "their torch or their network do not fit together",
                   ranks.size());
}

}  // namespace

RankTimes rank_times() {
  RankTimes times;
  const char* const text = std::getenv("FOVEA_RANK_TIMEOUT");
  if (text == nullptr || *text == '\0') return times;
  int64_t seconds = 0;
  const std::string_view value(text);
  const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  require<UsageError>(error == std::errc{} && *stop == '\0' && seconds >= 1 && seconds <= 864'000,
                      "ranks", "expected FOVEA_RANK_TIMEOUT in seconds from 1 to 864000; got '{}'",
                      value);
  times.exchange = std::chrono::seconds(seconds);
  times.meeting = std::min(times.meeting, times.exchange);
  return times;
}

std::unique_ptr<Communicator> join_ranks(const RankPlace& place, const RankTimes& times) {
  require<UsageError>(!place.alone(), "ranks", "expected at least 2 ranks; got one");
  auto ranks = std::make_unique<GlooRanks>(place, times);
  test_connections(*ranks);
  return ranks;
}

bool same_on_all(Communicator& ranks, std::string_view text) {
  // 48 bits, which a double holds exactly.
  const auto number = static_cast<double>(fingerprint(text) >> 16);
  double largest_and_smallest[] = {number, -number};
  ranks.max(largest_and_smallest);
  return largest_and_smallest[0] == -largest_and_smallest[1];
}

}  // namespace fovea
