// BandMask: what the CUDA kernels know of a mask, derived from a plan's visits.
//
// The kernels take masks whose visible keys are a band, or everything. Queries are neighbouring
// keys, documents are runs of keys at neighbouring positions. A query sees its document up to
// itself, or of that its window and the document's sinks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fovea/kernels/common/visits.h"

namespace fovea::kernels::cuda {

struct BandMask {
  bool causal = true;
  int64_t query_offset = 0;  ///< the key that query 0 is
  int64_t window = 0;        ///< 0: none
  int64_t sinks = 0;
  bool from_start = true;  ///< documents begin at position 0
  /// By row of the batch and query, the first key of its document. Empty: one document that begins
  /// at key 0. One row where all rows of the batch are alike.
  std::vector<int32_t> doc_start;

  std::optional<std::string> why_not;  ///< the mask is no band
};

/// `visits` of a call: one for all rows of the batch, or one each. Time O(tokens).
BandMask band_mask_of(std::span<const Visits> visits);

}  // namespace fovea::kernels::cuda
