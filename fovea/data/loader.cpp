// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/loader.h"

#include <utility>

#include "fovea/base/error.h"

namespace fovea {

Loader::Loader(std::unique_ptr<BatchSource> source, int64_t depth)
    : source_(std::move(source)), depth_(static_cast<size_t>(depth)), state_(source_->state()) {
  require<ConfigError>(depth >= 1, "loader", "expected a depth of at least 1; got {}", depth);
  start();
}

Loader::~Loader() { stop(); }

void Loader::start() {
  stopping_ = false;
  error_ = nullptr;
  queue_.clear();
  thread_ = std::thread([this] { work(); });
}

void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  drained_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Loader::work() {
  try {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        drained_.wait(lock, [this] { return stopping_ || queue_.size() < depth_; });
        if (stopping_) return;
      }
      Ready ready{source_->next(), source_->state()};
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(ready));
      filled_.notify_one();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    filled_.notify_one();
  }
}

Batch Loader::next() {
  std::unique_lock lock(mutex_);
  filled_.wait(lock, [this] { return !queue_.empty() || error_ != nullptr; });
  if (queue_.empty()) std::rethrow_exception(error_);
  Ready ready = std::move(queue_.front());
  queue_.pop_front();
  state_ = std::move(ready.state);
  lock.unlock();
  drained_.notify_one();
  return std::move(ready.batch);
}

LoaderState Loader::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void Loader::restore(const LoaderState& state) {
  stop();
  try {
    source_->restore(state);
    state_ = state;
  } catch (...) {
    source_->restore(state_);  // go on as if nothing had been asked
    start();
    throw;
  }
  start();
}

}  // namespace fovea
