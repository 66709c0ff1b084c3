// SideStream: work of a device beside the stream that computes. On the CPU, which has no streams,
// all of it does nothing.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <optional>

namespace fovea {

/// A point in the work of a stream.
class StreamPoint {
 public:
  StreamPoint() = default;
  /// After the work so far on the current stream of `device`.
  explicit StreamPoint(at::Device device);
  /// Later work on the current stream of the device waits for the point; the host does not.
  void wait() const;

 private:
  std::shared_ptr<c10::Event> event_;  // null on the CPU
  at::Device device_ = at::kCPU;
};

class SideStream {
 public:
  explicit SideStream(at::Device device);
  at::Device device() const { return device_; }

  /// While one lives, the side stream is the current one of its thread.
  class Scope {
   public:
    explicit Scope(const SideStream& side);

   private:
    std::optional<c10::StreamGuard> guard_;
  };

 private:
  at::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace fovea
