// Gathering by a ring: each rank passes on what it received from its neighbour, so every number
// crosses each connection once.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "fovea/runtime/communicator.h"

namespace fovea {

/// A Communicator whose engine gathers by a ring.
class RingGather {
 public:
  virtual ~RingGather() = default;
  /// rows [size, n], contiguous: row r becomes that of rank r, in place.
  virtual void ring_gather(const at::Tensor& rows) = 0;
};

/// rows [size, n]: row r becomes that of rank r, in place; without a ring, by broadcasts.
void ring_gather(const at::Tensor& rows, Communicator& ranks);

/// Bytes of one exchange of large tensors. A ring sends them in a piece a rank. A piece of 1 MiB
/// takes about as long as the latency of loopback and NVLink, or longer (docs/scaling-out.md). At
/// most 256 MiB, because a copy of it is held.
constexpr int64_t ring_bytes(int64_t ranks) {
  return std::clamp<int64_t>(ranks << 20, int64_t{4} << 20, int64_t{256} << 20);
}

}  // namespace fovea
