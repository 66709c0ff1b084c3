// A given block-sparse rule: the blocks of keys that the queries of a block see.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "fovea/config/fields.h"

namespace fovea {

struct AttentionSpec;
struct Mechanism;

/// A given block-sparse rule (stage 6): positions of a document in blocks of `size`; a query sees
/// what is not later in the blocks that its own is paired with.
struct BlockPairsSpec {
  int64_t size = 0;            ///< 0 = off
  std::vector<int64_t> pairs;  ///< query block, key block, query block, key block, ...

  bool active() const { return size > 0; }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const BlockPairsSpec&) const = default;
};

const Mechanism& block_pairs_mechanism();

}  // namespace fovea
