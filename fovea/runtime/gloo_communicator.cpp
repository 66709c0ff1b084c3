// The only source that reads headers of c10d, beside nccl/nccl_exchange.cpp.
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

  /// Whether some rank gives no sign of life.
  bool some_silent() {
    try {
      if (store_->check({"verdict"})) return true;
      const std::vector<std::string> before = beats();
      std::this_thread::sleep_for(times_.sign_of_life);
      return !silent(before, beats()).empty();
    } catch (const std::exception&) {
      return true;  // the place where they meet has gone
    }
  }

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

  std::vector<int64_t> silent(const std::vector<std::string>& before,
                              const std::vector<std::string>& now) const {
    std::vector<int64_t> found;
    for (size_t rank = 0; rank < now.size(); ++rank)
      if (static_cast<int64_t>(rank) != place_.rank && now[rank] == before[rank])
        found.push_back(static_cast<int64_t>(rank));
    return found;
  }

  std::string judge(const std::vector<std::string>& before, const std::vector<std::string>& now) {
    const std::vector<int64_t> gone = silent(before, now);
    if (!gone.empty()) return fmt::format("{} has died or hangs", rank_list(gone, place_.size));
    std::vector<int64_t> behind, exchanges;
    exchanges.reserve(now.size());
    for (const std::string& beat : now) exchanges.push_back(std::atoll(beat.c_str()));
    const int64_t most = *std::ranges::max_element(exchanges);
    for (size_t rank = 0; rank < now.size(); ++rank)
      if (static_cast<int64_t>(rank) != place_.rank && exchanges[rank] < most)
        behind.push_back(static_cast<int64_t>(rank));
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

/// A host that waits for its device cannot see that another rank has gone, whose numbers the device
/// awaits. This one looks, and ends what the device does.
class DeviceWatch {
 public:
  DeviceWatch(std::unique_ptr<DeviceExchange> exchange, SignsOfLife& signs)
      : exchange_(std::move(exchange)), signs_(signs), thread_([this] { watch(); }) {}
  ~DeviceWatch() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  /// For another exchange.
  DeviceExchange& next() {
    ++begun_;
    return *exchange_;
  }
  /// Tells the other devices, too, that this rank gives up.
  void give_up() {
    try {
      exchange_->give_up();
    } catch (const std::exception&) {
      // It has ended already.
    }
  }

 private:
  static constexpr std::chrono::seconds kLooks{1}, kLong{10};

  void watch() {
    int64_t seen = 0;
    Clock::time_point since = Clock::now();
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kLooks, [this] { return over_; })) {
      lock.unlock();
      const int64_t begun = begun_;
      if (begun != seen || exchange_->idle()) {
        seen = begun;
        since = Clock::now();
      } else if (Clock::now() - since > kLong && signs_.some_silent()) {
        return give_up();
      }
      lock.lock();
    }
  }

  std::unique_ptr<DeviceExchange> exchange_;
  SignsOfLife& signs_;
  std::atomic<int64_t> begun_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

/// The number of a text, which a double holds exactly: 48 bits.
double number_of(std::string_view text) { return static_cast<double>(fingerprint(text) >> 16); }

/// IoError where the connections do not compute.
void test_connections(Communicator& ranks, at::Device device) {
  const auto size = static_cast<double>(ranks.size()), rank = static_cast<double>(ranks.rank());
  bool right = ranks.sum(rank + 1.0) == size * (size + 1.0) / 2.0 && ranks.max(rank) == size - 1.0;
  constexpr int64_t kNumbers = 1000;
  const at::Tensor numbers = at::arange(kNumbers, at::TensorOptions(at::kFloat).device(device));
  const at::Tensor all = numbers.clone();
  ranks.sum(std::span(&all, 1));
  right = right && all.equal(numbers * size);
  const at::Tensor last = numbers + rank;
  ranks.broadcast(std::span(&last, 1), ranks.size() - 1);
  right = right && last.equal(numbers + (size - 1.0));
  require<IoError>(!ranks.any(!right), "ranks",
                   "expected the sums of {} ranks to be right; got other numbers: the machines, "
                   "their torch or their network do not fit together",
                   ranks.size());
}

class GlooRanks final : public JoinedRanks, public RingGather {
 public:
  using Communicator::max;
  using Communicator::sum;

  GlooRanks(const RankPlace& place, const RankTimes& times)
      : place_(place),
        times_(times),
        store_(open_store(place, times)),
        signs_(store_, place, times) {
    signs_.meet();
    group_ = connect(store_, place, times);
  }

  int64_t rank() const override { return place_.rank; }
  int64_t size() const override { return place_.size; }

  void sum(std::span<double> values) override { reduce(values, c10d::ReduceOp::SUM); }
  void max(std::span<double> values) override { reduce(values, c10d::ReduceOp::MAX); }
  void sum(std::span<const at::Tensor> tensors) override {
    in_buckets(tensors, [&](at::Tensor& flat) {
      if (by_device(flat)) return exchange([&] { device_->next().sum(flat); });
      std::vector<at::Tensor> whole{flat};
      exchange([&] { group_->allreduce(whole)->wait(); });
    });
  }
  void broadcast(std::span<const at::Tensor> tensors, int64_t from) override {
    c10d::BroadcastOptions options;
    options.rootRank = from;
    in_buckets(tensors, [&](at::Tensor& flat) {
      if (by_device(flat)) return exchange([&] { device_->next().broadcast(flat, from); });
      std::vector<at::Tensor> whole{flat};
      exchange([&] { group_->broadcast(whole, options)->wait(); });
    });
  }
  void ring_gather(const at::Tensor& rows) override {
    const at::NoGradGuard no_grad;
    if (by_device(rows)) return exchange([&] { device_->next().gather(rows); });
    // Gloo copies what it gathers: a bucket at a time.
    const int64_t length = rows.size(1);
    const int64_t columns =
        std::max<int64_t>(1, ring_bytes(size()) / (size() * rows.element_size()));
    for (int64_t begin = 0; begin < length; begin += columns) {
      const at::Tensor block = rows.narrow(1, begin, std::min(columns, length - begin));
      std::vector<std::vector<at::Tensor>> out{block.unbind(0)};
      std::vector<at::Tensor> own{out[0][static_cast<size_t>(rank())]};
      exchange([&] { group_->allgather(out, own)->wait(); });
    }
  }
  void barrier() override {
    double nothing = 0.0;
    sum(std::span(&nothing, 1));
  }
  void compute_on(at::Device device, std::string_view gpu,
                  const DeviceExchangeMaker& make) override {
    if (!on_devices(device, gpu)) return;
    // As Gloo: ranks of one machine listen on its own address alone.
    if (place_.one_machine) ::setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);
    std::string why;
    try {
      device_ = std::make_unique<DeviceWatch>(make({.store = store_->clone(),
                                                    .rank = place_.rank,
                                                    .size = place_.size,
                                                    .device = device,
                                                    .timeout = times_.exchange}),
                                              signs_);
      exchanges_on_ = device;
    } catch (const Error& error) {
      why = error.what();
    } catch (const std::exception& error) {
      why = first_line(error.what());
    }
    const bool failed = any(!why.empty());
    require<ConfigError>(why.empty(), "ranks", "rank {} of {} cannot exchange with other GPUs: {}",
                         place_.rank, place_.size, why);
    require<ConfigError>(!failed, "ranks",
                         "another rank cannot exchange with other GPUs: it says why");
    test_connections(*this, device);
  }

 private:
  /// Whether all ranks compute on devices of their own; false where all compute on the CPU.
  bool on_devices(at::Device device, std::string_view gpu) {
    const bool on_cpu = device.is_cpu();
    // NCCL_HOSTID is NCCL's own name of a machine; it takes ranks apart that have another one.
    const char* const host = std::getenv("NCCL_HOSTID");
    std::vector<double> gpus(static_cast<size_t>(place_.size), 0.0);
    if (!on_cpu)
      gpus[static_cast<size_t>(place_.rank)] =
          1.0 + number_of(fmt::format("{} {}", gpu, host == nullptr ? "" : host));
    sum(gpus);
    std::vector<int64_t> cpus, twins;
    for (int64_t rank = 0; rank < place_.size; ++rank) {
      const double own = gpus[static_cast<size_t>(rank)];
      if (own == 0.0) cpus.push_back(rank);
      if (own != 0.0 && std::ranges::count(gpus, own) > 1) twins.push_back(rank);
    }
    if (std::ssize(cpus) == place_.size) return false;
    require<ConfigError>(cpus.empty(), "ranks",
                         "expected a GPU for each rank, or none; {} without: start one rank a GPU, "
                         "or set train.device=cpu",
                         rank_list(cpus, place_.size));
    require<ConfigError>(twins.empty(), "ranks",
                         "expected a GPU for each rank; {} have one together: start one rank a "
                         "GPU, without CUDA_VISIBLE_DEVICES or with all of a machine's GPUs in it",
                         rank_list(twins, place_.size));
    return true;
  }

  bool by_device(const at::Tensor& tensor) const {
    return device_ && tensor.device() == exchanges_on_;
  }

  void reduce(std::span<double> values, c10d::ReduceOp::RedOpType operation) {
    if (values.empty()) return;
    c10d::AllreduceOptions options;
    options.reduceOp = operation;
    std::vector<at::Tensor> whole{at::from_blob(
        values.data(), {static_cast<int64_t>(values.size())}, at::TensorOptions(at::kDouble))};
    exchange([&] { group_->allreduce(whole, options)->wait(); });
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
  void run_bucket(std::span<const at::Tensor> tensors, const F& run) const {
    const at::Tensor& first = tensors.front();
    const bool stays = first.is_cpu() || by_device(first);
    if (tensors.size() == 1 && first.is_contiguous() && stays) {
      at::Tensor flat = first.detach().view(-1);
      return run(flat);
    }
    std::vector<at::Tensor> parts;
    for (const at::Tensor& tensor : tensors) parts.push_back(tensor.detach().reshape(-1));
    at::Tensor flat = at::cat(parts);
    if (!stays) flat = flat.cpu();
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
      begin();
      return;
    } catch (const std::exception& error) {
      reason = first_line(error.what());
    }
    group_->close_connections();  // the others stop waiting for this rank
    if (device_) device_->give_up();
    fail<LostRankError>("ranks",
                        "rank {} stopped: {} ({}). Checkpoints are whole: the same command goes "
                        "on, also with another number of ranks",
                        place_.rank, signs_.verdict(), reason);
  }

  RankPlace place_;
  RankTimes times_;
  StorePointer store_;
  SignsOfLife signs_;
  c10::intrusive_ptr<GlooGroup> group_;
  std::unique_ptr<DeviceWatch> device_;
  at::Device exchanges_on_ = at::kCPU;
};

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

std::unique_ptr<JoinedRanks> join_ranks(const RankPlace& place, const RankTimes& times) {
  auto ranks = std::make_unique<GlooRanks>(place, times);
  test_connections(*ranks, at::kCPU);
  return ranks;
}

bool same_on_all(Communicator& ranks, std::string_view text) {
  const double number = number_of(text);
  double largest_and_smallest[] = {number, -number};
  ranks.max(largest_and_smallest);
  return largest_and_smallest[0] == -largest_and_smallest[1];
}

}  // namespace fovea
