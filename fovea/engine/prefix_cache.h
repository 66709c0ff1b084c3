// Caches of the beginnings of earlier prompts, in chunks: a tree, whose leaves are forgotten by
// recency. Private to fovea/engine.
//
// A beginning is shared in whole chunks of the same tokens, so that a text has the same numbers
// whether it was found here or read.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "fovea/nn/decode_state.h"

namespace fovea {

/// The cache of a beginning: immutable.
using SharedState = std::shared_ptr<const DecodeState>;

class PrefixCache {
 public:
  explicit PrefixCache(int64_t chunk) : chunk_(chunk) {}

  /// The state after the first `chunks` chunks of `tokens`; null where it is not here. `now` grows
  /// from call to call; caches that compete for memory share it.
  SharedState find(std::span<const int32_t> tokens, int64_t chunks, uint64_t now);
  /// Adds the state after the first `chunks` chunks, unless it is here or the one before it is not.
  void insert(std::span<const int32_t> tokens, int64_t chunks, SharedState state, uint64_t now);

  bool empty() const { return root_.children.empty(); }
  /// Bytes of all chunks.
  int64_t bytes() const { return bytes_; }
  /// When the least recent leaf was found or added; the cache is not empty.
  uint64_t oldest() { return oldest_leaf().node->used; }
  /// Forgets that leaf; its bytes.
  int64_t evict();

 private:
  struct Node {
    std::vector<int32_t> tokens;  // of its chunk
    SharedState state;
    int64_t bytes = 0;
    uint64_t used = 0;
    std::list<Node> children;
  };
  std::span<const int32_t> chunk_of(std::span<const int32_t> tokens, int64_t chunk) const;
  /// The node after `chunks` chunks, all of whose path becomes recent; null where it is not here.
  Node* walk(std::span<const int32_t> tokens, int64_t chunks, uint64_t now);
  struct Leaf {
    Node* parent = nullptr;
    std::list<Node>::iterator node;
  };
  Leaf oldest_leaf();

  int64_t chunk_;
  Node root_;
  int64_t bytes_ = 0;
};

}  // namespace fovea
