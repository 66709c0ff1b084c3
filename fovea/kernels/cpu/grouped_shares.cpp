// Cutting a plan into shares of key blocks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/grouped_shares.h"

#include <algorithm>

#include "fovea/kernels/cpu/grouped_driver.h"

namespace fovea::kernels {
namespace {

// Keys of a share of near pairs, at least: its queries reach one window further.
constexpr int64_t kNearShare = 1024;
// So many components give threads enough to share; fewer ones are cut.
constexpr int64_t kEnoughComponents = 4;

int64_t parts_of(int64_t keys, int64_t each) { return std::clamp<int64_t>(keys / each, 1, 8); }

class Shares {
 public:
  explicit Shares(const GroupedPlan& plan) : plan_(plan) {
    if (plan.has_far()) {
      add_far();
      if (plan.has_near()) add_near();
    } else {
      add_tiles();
    }
  }
  std::vector<KeyShare> take() { return std::move(shares_); }

 private:
  // Deals blocks round robin to `parts` shares like `share`.
  void deal(const KeyShare& share, const std::vector<KeyBlock>& blocks, int64_t parts) {
    for (int64_t part = 0; part < parts; ++part) {
      shares_.push_back(share);
      for (int64_t n = part; n < std::ssize(blocks); n += parts)
        shares_.back().blocks.push_back(blocks[n]);
    }
  }

  void add_far() {
    const FarPairs& far = plan_.far;
    const int64_t slots = query_slots(plan_);
    std::vector<KeyShare> parts;
    for (int64_t n = 0; n < far.components; ++n)
      parts.push_back(
          {.far = true, .row_begin = slots, .component = n, .key_begin = key_slots(plan_)});
    std::vector<std::vector<KeyBlock>> blocks(parts.size());
    for (int64_t s = 0; s < std::ssize(far.lists); ++s) {
      const SlotList& list = far.lists[s];
      KeyShare& part = parts[list.component];
      for (int64_t n = 0; n < list.keys; n += kKeyBlock)
        blocks[list.component].push_back(
            {s, list.key_begin + n, list.key_begin + std::min(n + kKeyBlock, list.keys)});
      part.key_begin = std::min(part.key_begin, list.key_begin);
      part.key_end = std::max(part.key_end, list.key_begin + round_up(list.keys, kVisitTile));
      for (const int32_t c : far.visited_by.of(s)) {
        const SlotList& visitor = far.lists[c];
        if (visitor.component != list.component) part.component = -1;  // sinks are read by all
        part.row_begin = std::min(part.row_begin, visitor.query_begin);
        part.row_end =
            std::max(part.row_end, visitor.query_begin + round_up(visitor.queries, kVisitTile));
      }
    }
    join_if_large(parts, blocks);
    for (size_t n = 0; n < parts.size(); ++n) {
      parts[n].row_begin = std::min(parts[n].row_begin, parts[n].row_end);
      const int64_t keys = std::ssize(blocks[n]) * kKeyBlock;
      const int64_t shares =
          std::ssize(parts) >= kEnoughComponents ? 1 : parts_of(keys, kNearShare);
      if (shares > 1) parts[n].component = -1;
      deal(parts[n], blocks[n], shares);
    }
  }

  // Components whose lists lie apart have long ranges of rows; all in one keep memory linear.
  void join_if_large(std::vector<KeyShare>& parts,
                     std::vector<std::vector<KeyBlock>>& blocks) const {
    int64_t rows = 0;
    for (const KeyShare& part : parts) rows += std::max<int64_t>(part.rows(), 0);
    if (rows <= 3 * query_slots(plan_)) return;
    for (size_t n = 1; n < parts.size(); ++n)
      blocks[0].insert(blocks[0].end(), blocks[n].begin(), blocks[n].end());
    blocks.resize(1);
    parts.assign(1, KeyShare{.far = true, .row_end = query_slots(plan_)});
  }

  std::vector<KeyBlock> key_blocks(int64_t begin, int64_t end) const {
    std::vector<KeyBlock> blocks;
    for (int64_t n = begin; n < end; n += kKeyBlock)
      blocks.push_back({0, n, std::min(n + kKeyBlock, plan_.keys)});
    return blocks;
  }

  void add_near() {
    const int64_t size = std::max(kNearShare, round_up(plan_.rule.window, kKeyBlock));
    const int64_t offset = plan_.first_query(), first = std::ssize(shares_);
    for (int64_t begin = 0; begin < plan_.keys; begin += size) {
      const int64_t end = std::min(begin + size, plan_.keys);
      KeyShare share;
      share.row_begin = std::max<int64_t>(begin - offset, 0) / kVisitTile * kVisitTile;
      share.row_end =
          std::max(share.row_begin,
                   round_up(std::max<int64_t>(plan_.far_from[end - 1] - offset, 0), kVisitTile));
      deal(share, key_blocks(begin, end), 1);
    }
    const int64_t last = std::ssize(shares_) - 1;
    int64_t reached = 0;  // by those before
    for (int64_t n = first; n <= last; ++n) {
      KeyShare& share = shares_[n];
      share.alone_begin = std::clamp(reached, share.row_begin, share.row_end);
      share.alone_end = n < last
                            ? std::clamp(shares_[n + 1].row_begin, share.alone_begin, share.row_end)
                            : share.row_end;
      reached = std::max(reached, share.row_end);
    }
  }

  void add_tiles() {
    KeyShare share;
    share.row_end = round_up(plan_.queries, kVisitTile);
    deal(share, key_blocks(0, plan_.keys), parts_of(plan_.keys, 512));
  }

  const GroupedPlan& plan_;
  std::vector<KeyShare> shares_;
};

}  // namespace

std::vector<KeyShare> key_shares(const GroupedPlan& plan) { return Shares(plan).take(); }

}  // namespace fovea::kernels
