// Given block pairs: keys, checks, the reference of stage 6.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/specs/block_pairs.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/stage_rows.h"
#include "fovea/base/error.h"

namespace fovea {

void BlockPairsSpec::describe(FieldVisitor& v) {
  v.integer({"size", "positions of a block; 0 = no such rule", ranges::kPositionCounts}, size);
  v.integers({"pairs",
              "visible pairs of blocks: query block, key block, query block, ...",
              {0, (1 << 20) - 1}},
             pairs);
}

void BlockPairsSpec::check() const {
  require<ConfigError>(size >= 0, kSpecPlace, "blocks.size must be 0 (off) or larger; got {}",
                       size);
  require<ConfigError>(active() || pairs.empty(), kSpecPlace,
                       "blocks.pairs need blocks.size; got {} numbers", pairs.size());
  require<ConfigError>(pairs.size() % 2 == 0, kSpecPlace,
                       "blocks.pairs are pairs of a query block and a key block; got {} numbers",
                       pairs.size());
  for (const int64_t block : pairs)
    require<ConfigError>(block >= 0 && block < 1 << 20, kSpecPlace,
                         "blocks.pairs number blocks from 0; got {}", block);
}

namespace {

std::vector<StageUse> block_pairs_uses(const AttentionSpec& spec) {
  const BlockPairsSpec& b = spec.blocks;
  if (!b.active()) return {};
  return {{.stage = StageId::allowed,
           .setting = fmt::format("{} pairs of blocks of {}", b.pairs.size() / 2, b.size),
           .why_not_sdpa = "given pairs of blocks are no mask of torch's"}};
}

at::Tensor block_pairs_visible(const at::Tensor& allowed, const StageRows& rows) {
  const BlockPairsSpec& spec = rows.call.spec.blocks;
  if (!spec.active()) return allowed;
  const Places& places = rows.places;
  int64_t blocks = 0;
  for (const int64_t block : spec.pairs) blocks = std::max(blocks, block + 1);
  // One row and column more, which nobody sees, stands for all later blocks.
  at::Tensor table = at::zeros({blocks + 1, blocks + 1}, at::kBool);
  for (size_t n = 0; n + 1 < spec.pairs.size(); n += 2)
    table.mutable_data_ptr<bool>()[spec.pairs[n] * (blocks + 1) + spec.pairs[n + 1]] = true;
  const auto block_of = [&](const at::Tensor& positions) {
    return positions.div(spec.size, "floor").clamp(0, blocks);
  };
  const at::Tensor entry = block_of(places.query_positions_bt).unsqueeze(2) * (blocks + 1) +
                           block_of(places.key_positions_bs).unsqueeze(1);
  return table.flatten().to(entry.device()).index({entry}).unsqueeze(1).logical_and(allowed);
}

constexpr MechanismSetting kBlockPairsSettings[] = {
    {"given blocks",
     [](AttentionSpec& s) {
       s.blocks = {.size = 64, .pairs = {0, 0}};
     }},
};

}  // namespace

const Mechanism& block_pairs_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "blocks",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"blocks", "stage 6: given pairs of blocks of positions"}, spec.blocks);
          },
      .check = [](const AttentionSpec& spec) { spec.blocks.check(); },
      .uses = block_pairs_uses,
      .visible = block_pairs_visible,
      .settings = kBlockPairsSettings,
      .key_rule = [](const AttentionSpec& spec) -> std::optional<KeyRule> {
        return spec.blocks.active() ? std::optional(KeyRule::lists) : std::nullopt;
      },
  };
  return mechanism;
}

}  // namespace fovea
