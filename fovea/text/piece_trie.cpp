// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/piece_trie.h"

#include <algorithm>

namespace fovea {

PieceTrie::PieceTrie(const std::vector<std::string>& pieces) {
  std::vector<int32_t> order;
  for (size_t id = 0; id < pieces.size(); ++id)
    if (!pieces[id].empty()) order.push_back(static_cast<int32_t>(id));
  const auto text = [&](int32_t id) -> const std::string& {
    return pieces[static_cast<size_t>(id)];
  };
  std::ranges::stable_sort(order, {}, text);

  // Each node covers the pieces that begin with its path: a range of the order.
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges{{0, order.size(), 0}};
  nodes_.emplace_back();
  labels_.push_back(0);
  for (size_t node = 0; node < ranges.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    for (; begin < end && text(order[begin]).size() == depth; ++begin)
      nodes_[node].id = order[begin];
    nodes_[node].first = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char label = text(order[begin])[depth];
      size_t next = begin;
      while (next < end && text(order[next])[depth] == label) ++next;
      ranges.push_back({begin, next, depth + 1});
      nodes_.emplace_back();
      labels_.push_back(static_cast<uint8_t>(label));
      begin = next;
    }
  }
  nodes_.push_back({.first = static_cast<uint32_t>(nodes_.size())});
  for (uint32_t i = nodes_[0].first; i < nodes_[1].first; ++i) heads_[labels_[i]] = i;
}

}  // namespace fovea
