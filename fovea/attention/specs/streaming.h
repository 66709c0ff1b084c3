// StreamingLLM: the first tokens and the most recent ones, at positions inside the cache (spec 4.6;
// Xiao et al. 2023).
//
// Query i sees key j <= i of its document where j < start or i - j < recent. Distances among the
// recent ones are true; a start key j is start + recent - 1 - j away from a query that comes after
// a full cache. So start keys are read by the query as rotated to position
// min(i, start + recent - 1), and nothing else changes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/config/fields.h"

namespace fovea {

struct Mechanism;

struct StreamingSpec {
  int64_t recent = 0;  ///< most recent keys, the token itself included; 0 = off
  int64_t start = 4;   ///< first positions of the document that stay

  bool active() const { return recent > 0; }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const StreamingSpec&) const = default;
};

const Mechanism& streaming_mechanism();

}  // namespace fovea
