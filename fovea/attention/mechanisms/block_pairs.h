// A given block-sparse rule: the blocks of keys that the queries of a block see.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "fovea/config/fields.h"

namespace fovea {

struct AttentionSpec;
struct Mechanism;
struct Places;

/// A given block-sparse rule (stage 6): positions of a document lie in blocks of `size`. A query
/// sees the keys, none later than itself, of the blocks that its own block is paired with.
struct BlockPairsSpec {
  int64_t size = 0;            ///< 0 = off
  std::vector<int64_t> pairs;  ///< query block, key block, query block, key block, ...

  bool active() const { return size > 0; }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const BlockPairsSpec&) const = default;
};

const Mechanism& block_pairs_mechanism();

/// ConfigError or UnsupportedError where the rule `name` (routing, blocks) and another one both
/// choose the distant keys.
void check_only_key_rule(const AttentionSpec& spec, std::string_view name);

/// The allowed pairs that `blocks` keeps: [b or 1, 1, t, s].
at::Tensor block_pairs_visible(const BlockPairsSpec& spec, const at::Tensor& allowed_b1ts,
                               const Places& places);

}  // namespace fovea
