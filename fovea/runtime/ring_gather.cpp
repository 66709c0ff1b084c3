// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/ring_gather.h"

#include <ATen/ops/select.h>

namespace fovea {

void ring_gather(const at::Tensor& rows, Communicator& ranks) {
  if (ranks.size() == 1) return;
  if (auto* const ring = dynamic_cast<RingGather*>(&ranks)) return ring->ring_gather(rows);
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const at::Tensor row = rows.select(0, rank);
    ranks.broadcast(std::span(&row, 1), rank);
  }
}

}  // namespace fovea
