// GradientBuckets: sums gradients over the ranks while the backward pass goes on.
//
// Gradients are summed in buckets of ring_bytes(), in the reverse order of registration, which is
// about the order in which the backward pass makes them. A bucket is sent by a thread of its own as
// soon as it and those before it are whole. Every rank sends the same buckets in the same order.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "fovea/nn/parameters.h"
#include "fovea/runtime/communicator.h"

namespace fovea {

class GradientBuckets {
 public:
  /// Sums the gradients of trainable parameters. Registry and communicator must outlive it. Alone
  /// it does nothing.
  GradientBuckets(ParameterRegistry& parameters, Communicator& ranks);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Before the last backward pass of a step, in which each parameter receives its gradient once.
  /// Until finish() nobody else may use the communicator.
  void begin();
  /// Returns when each gradient is its sum over the ranks, with or without begin(). Rethrows errors
  /// of the communicator.
  void finish();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // hooks share it; null where this rank is alone
};

}  // namespace fovea
