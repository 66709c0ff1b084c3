// Finds all pieces of a vocabulary that begin at one place of a text.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

class PieceTrie {
 public:
  /// `pieces[id]`; "" is left out. The last of equal pieces counts.
  explicit PieceTrie(const std::vector<std::string>& pieces);

  /// Calls found(size, id) for every piece at the head of a text, the shortest first.
  template <class Found>
  void prefixes(std::string_view text, const Found& found) const {
    if (text.empty()) return;
    uint32_t node = heads_[static_cast<uint8_t>(text[0])];
    for (size_t size = 1; node != 0; ++size) {
      if (nodes_[node].id >= 0) found(size, nodes_[node].id);
      if (size == text.size()) return;
      node = child(node, static_cast<uint8_t>(text[size]));
    }
  }

 private:
  // The children of a node are in a row, up to the first child of the node after it.
  struct Node {
    uint32_t first = 0;
    int32_t id = -1;
  };
  uint32_t child(uint32_t node, uint8_t byte) const {
    const uint32_t first = nodes_[node].first, count = nodes_[node + 1].first - first;
    if (count == 0) return 0;
    const auto* found =
        static_cast<const uint8_t*>(std::memchr(labels_.data() + first, byte, count));
    return found == nullptr ? 0 : static_cast<uint32_t>(found - labels_.data());
  }

  std::vector<Node> nodes_;  // by depth; the root is node 0, which is no child
  std::vector<uint8_t> labels_;
  std::array<uint32_t, 256> heads_{};
};

}  // namespace fovea
