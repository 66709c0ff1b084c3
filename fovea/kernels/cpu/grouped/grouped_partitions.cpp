// Cutting a plan into partitions of key blocks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/grouped/grouped_partitions.h"

#include <algorithm>

#include "fovea/kernels/cpu/grouped/grouped_driver.h"

namespace fovea::kernels {
namespace {

// Keys of a partition of near pairs, at least: its queries reach one window further.
constexpr int64_t kNearPartition = 1024;
// So many components give enough work for all threads; fewer ones are cut.
constexpr int64_t kEnoughComponents = 4;

int64_t parts_of(int64_t keys, int64_t each) { return std::clamp<int64_t>(keys / each, 1, 8); }

class Partitions {
 public:
  explicit Partitions(const GroupedPlan& plan) : plan_(plan) {
    if (plan.has_far()) {
      add_far();
      if (plan.has_near()) add_near();
    } else {
      add_tiles();
    }
  }
  std::vector<KeyPartition> take() { return std::move(partitions_); }

 private:
  // Deals blocks round robin to `parts` partitions like `partition`.
  void deal(const KeyPartition& partition, const std::vector<KeyBlock>& blocks, int64_t parts) {
    for (int64_t part = 0; part < parts; ++part) {
      partitions_.push_back(partition);
      for (int64_t n = part; n < std::ssize(blocks); n += parts)
        partitions_.back().blocks.push_back(blocks[n]);
    }
  }

  void add_far() {
    const FarPairs& far = plan_.far;
    const int64_t slots = query_slots(plan_);
    std::vector<KeyPartition> parts;
    for (int64_t n = 0; n < far.components; ++n)
      parts.push_back(
          {.far = true, .row_begin = slots, .component = n, .key_begin = key_slots(plan_)});
    std::vector<std::vector<KeyBlock>> blocks(parts.size());
    for (int64_t s = 0; s < std::ssize(far.lists); ++s) {
      const SlotList& list = far.lists[s];
      KeyPartition& part = parts[list.component];
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
      const int64_t partitions =
          std::ssize(parts) >= kEnoughComponents ? 1 : parts_of(keys, kNearPartition);
      if (partitions > 1) parts[n].component = -1;
      deal(parts[n], blocks[n], partitions);
    }
  }

  // Components whose lists lie apart have long ranges of rows; all in one keep memory linear.
  void join_if_large(std::vector<KeyPartition>& parts,
                     std::vector<std::vector<KeyBlock>>& blocks) const {
    int64_t rows = 0;
    for (const KeyPartition& part : parts) rows += std::max<int64_t>(part.rows(), 0);
    if (rows <= 3 * query_slots(plan_)) return;
    for (size_t n = 1; n < parts.size(); ++n)
      blocks[0].insert(blocks[0].end(), blocks[n].begin(), blocks[n].end());
    blocks.resize(1);
    parts.assign(1, KeyPartition{.far = true, .row_end = query_slots(plan_)});
  }

  std::vector<KeyBlock> key_blocks(int64_t begin, int64_t end) const {
    std::vector<KeyBlock> blocks;
    for (int64_t n = begin; n < end; n += kKeyBlock)
      blocks.push_back({0, n, std::min(n + kKeyBlock, plan_.keys)});
    return blocks;
  }

  void add_near() {
    const int64_t size = std::max(kNearPartition, round_up(plan_.rule.window, kKeyBlock));
    const int64_t offset = plan_.first_query(), first = std::ssize(partitions_);
    for (int64_t begin = 0; begin < plan_.keys; begin += size) {
      const int64_t end = std::min(begin + size, plan_.keys);
      KeyPartition partition;
      partition.row_begin = std::max<int64_t>(begin - offset, 0) / kVisitTile * kVisitTile;
      partition.row_end =
          std::max(partition.row_begin,
                   round_up(std::max<int64_t>(plan_.far_from[end - 1] - offset, 0), kVisitTile));
      deal(partition, key_blocks(begin, end), 1);
    }
    const int64_t last = std::ssize(partitions_) - 1;
    int64_t reached = 0;  // by those before
    for (int64_t n = first; n <= last; ++n) {
      KeyPartition& partition = partitions_[n];
      partition.alone_begin = std::clamp(reached, partition.row_begin, partition.row_end);
      partition.alone_end = n < last ? std::clamp(partitions_[n + 1].row_begin,
                                                  partition.alone_begin, partition.row_end)
                                     : partition.row_end;
      reached = std::max(reached, partition.row_end);
    }
  }

  void add_tiles() {
    KeyPartition partition;
    partition.row_end = round_up(plan_.queries, kVisitTile);
    deal(partition, key_blocks(0, plan_.keys), parts_of(plan_.keys, 512));
  }

  const GroupedPlan& plan_;
  std::vector<KeyPartition> partitions_;
};

}  // namespace

std::vector<KeyPartition> key_partitions(const GroupedPlan& plan) {
  return Partitions(plan).take();
}

}  // namespace fovea::kernels
