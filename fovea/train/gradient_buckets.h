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

/// Seconds of the sums of a step on CPUs. On devices, which the host does not wait for, both are 0.
struct SumTimes {
  double exchanged = 0;  ///< a bucket was on its way
  double waited = 0;     ///< finish() waited: this much no backward pass hid
};

/// FOVEA_GRADIENT_SUMS=after sums after the backward pass, to measure both; beside is the default.
class GradientBuckets {
 public:
  /// Sums the gradients of trainable parameters. Registry and communicator must outlive it. Alone
  /// it does nothing. UsageError for another FOVEA_GRADIENT_SUMS.
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
  /// Those of the last step that finished, of the rank that came last: the others waited for it,
  /// too. All ranks call it.
  SumTimes times() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // hooks share it; null where this rank is alone
};

}  // namespace fovea
