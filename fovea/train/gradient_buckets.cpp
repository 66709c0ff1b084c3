// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/gradient_buckets.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/runtime/ring_gather.h"
#include "fovea/runtime/side_stream.h"

namespace fovea {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool sums_beside_the_pass() {
  const char* const given = std::getenv("FOVEA_GRADIENT_SUMS");
  const std::string_view when = given == nullptr || *given == '\0' ? "beside" : given;
  require<UsageError>(when == "beside" || when == "after", "ranks",
                      "expected FOVEA_GRADIENT_SUMS to be beside or after (the backward pass); got "
                      "'{}'",
                      when);
  return when == "beside";
}

}  // namespace

struct GradientBuckets::Impl {
  struct Bucket {
    std::vector<at::Tensor> values;  // parameters
    int64_t awaited = 0;             // gradients of this step that are not there yet
    StreamPoint whole;               // after its last gradient
  };

  Impl(Communicator& communicator, at::Device device) : ranks(communicator), side(device) {}
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      over = true;
    }
    changed.notify_all();
    if (sender.joinable()) sender.join();
  }

  void add(const at::Tensor& value) {
    const int64_t bytes = static_cast<int64_t>(value.nbytes());
    if (buckets.empty() || last_bytes + bytes > ring_bytes(ranks.size())) {
      buckets.emplace_back();
      last_bytes = 0;
    }
    buckets.back().values.push_back(value);
    last_bytes += bytes;
  }

  /// A gradient of bucket `n` is there.
  void arrived(size_t n) {
    const std::lock_guard lock(mutex);
    if (!listens) return;
    if (--buckets[n].awaited < 0) {
      error = std::make_exception_ptr(
          std::logic_error("a parameter received its gradient twice in one backward pass"));
      return;
    }
    if (buckets[n].awaited == 0) buckets[n].whole = StreamPoint(side.device());
    while (whole < buckets.size() && buckets[whole].awaited == 0) ++whole;
    changed.notify_all();
  }

  /// The sender's thread.
  void send() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return over || sent < whole; });
      if (over) return;
      lock.unlock();
      std::exception_ptr failed;
      const Clock::time_point start = Clock::now();
      try {
        send_bucket(sent);
      } catch (...) {
        failed = std::current_exception();
      }
      lock.lock();
      times.exchanged += seconds_since(start);
      if (failed && !error) error = failed;
      sent = failed ? buckets.size() : sent + 1;
      if (failed) whole = sent;
      changed.notify_all();
    }
  }

  void send_bucket(size_t n) {
    const SideStream::Scope scope(side);
    buckets[n].whole.wait();
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& value : buckets[n].values)
      if (value.grad().defined()) gradients.push_back(value.grad());
    ranks.sum(gradients);
    last = StreamPoint(side.device());
  }

  Communicator& ranks;
  SideStream side;   // of the sums, beside the backward pass
  StreamPoint last;  // after the last sum
  std::vector<Bucket> buckets;
  int64_t last_bytes = 0;
  std::mutex mutex;
  std::condition_variable changed;
  size_t whole = 0, sent = 0;  // of buckets, in their order
  bool beside = sums_beside_the_pass();
  bool listens = false, over = false;
  SumTimes times, last_times;
  std::exception_ptr error;
  std::thread sender;
};

namespace {

class GradientArrived final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit GradientArrived(std::function<void()> tell) : tell_(std::move(tell)) {}
  void operator()(const at::Tensor& /*parameter*/) override { tell_(); }

 private:
  std::function<void()> tell_;
};

}  // namespace

GradientBuckets::GradientBuckets(ParameterRegistry& parameters, Communicator& ranks) {
  if (ranks.size() == 1) return;
  const at::Device device =
      parameters.all().empty() ? at::Device(at::kCPU) : parameters.all().front().value.device();
  impl_ = std::make_shared<Impl>(ranks, device);
  std::deque<Parameter>& all = parameters.all();
  for (auto parameter = all.rbegin(); parameter != all.rend(); ++parameter) {
    if (!parameter->trainable) continue;
    impl_->add(parameter->value);
    const size_t n = impl_->buckets.size() - 1;
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameter->value, std::make_unique<GradientArrived>([n, weak = std::weak_ptr(impl_)] {
          if (const auto buckets = weak.lock()) buckets->arrived(n);
        }));
  }
  impl_->sender = std::thread([impl = impl_.get()] { impl->send(); });
}

GradientBuckets::~GradientBuckets() = default;

void GradientBuckets::begin() {
  if (!impl_ || !impl_->beside) return;
  const std::lock_guard lock(impl_->mutex);
  for (Impl::Bucket& bucket : impl_->buckets) bucket.awaited = std::ssize(bucket.values);
  impl_->whole = impl_->sent = 0;
  impl_->error = nullptr;
  impl_->listens = true;
}

void GradientBuckets::finish() {
  if (!impl_) return;
  const Clock::time_point start = Clock::now();
  std::unique_lock lock(impl_->mutex);
  if (!impl_->listens) impl_->sent = impl_->whole = 0;
  impl_->listens = false;
  const StreamPoint now(impl_->side.device());
  for (size_t n = impl_->whole; n < impl_->buckets.size(); ++n) impl_->buckets[n].whole = now;
  impl_->whole = impl_->buckets.size();  // parameters without a gradient are not waited for
  impl_->changed.notify_all();
  impl_->changed.wait(lock, [&] { return impl_->sent >= impl_->buckets.size(); });
  if (const std::exception_ptr error = std::exchange(impl_->error, nullptr))
    std::rethrow_exception(error);
  impl_->last.wait();
  impl_->times.waited = seconds_since(start);
  const SumTimes measured = std::exchange(impl_->times, {});
  if (impl_->side.device().is_cpu()) impl_->last_times = measured;
}

SumTimes GradientBuckets::times() const {
  if (!impl_) return {};
  double least[] = {-impl_->last_times.exchanged, -impl_->last_times.waited};
  impl_->ranks.max(least);
  return {.exchanged = -least[0], .waited = -least[1]};
}

}  // namespace fovea
