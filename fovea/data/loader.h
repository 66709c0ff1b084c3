// Loader: a thread that keeps the next batches ready, so that the training step does not wait.
//
// It gives the same batches, in the same order, as the source that it wraps. state() belongs to the
// last batch handed out, not to the last one prepared, so a checkpoint loses and repeats nothing.
// An exception in the source is thrown by the next() that would have returned that batch, and by
// every later one until restore().
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "fovea/data/batch.h"

namespace fovea {

class Loader : public BatchSource {
 public:
  /// Keeps up to `depth` batches ready (>= 1).
  explicit Loader(std::unique_ptr<BatchSource> source, int64_t depth = 4);
  /// Stops the thread; waits at most for the batch it is making.
  ~Loader() override;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  Batch next() override;
  LoaderState state() const override;
  void restore(const LoaderState& state) override;

 private:
  struct Ready {
    Batch batch;
    LoaderState state;
  };
  void start();
  void stop();
  void work();

  std::unique_ptr<BatchSource> source_;  // touched by the thread only, while it runs
  size_t depth_;
  mutable std::mutex mutex_;
  std::condition_variable filled_, drained_;
  std::deque<Ready> queue_;
  LoaderState state_;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace fovea
