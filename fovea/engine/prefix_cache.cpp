// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/prefix_cache.h"

#include <algorithm>
#include <utility>

namespace fovea {

std::span<const int32_t> PrefixCache::chunk_of(std::span<const int32_t> tokens,
                                               int64_t chunk) const {
  return tokens.subspan(static_cast<size_t>(chunk * chunk_), static_cast<size_t>(chunk_));
}

PrefixCache::Node* PrefixCache::walk(std::span<const int32_t> tokens, int64_t chunks,
                                     uint64_t now) {
  if (std::ssize(tokens) < chunks * chunk_) return nullptr;
  Node* node = &root_;
  for (int64_t n = 0; n < chunks; ++n) {
    const std::span<const int32_t> part = chunk_of(tokens, n);
    const auto child = std::ranges::find_if(
        node->children, [&](const Node& c) { return std::ranges::equal(c.tokens, part); });
    if (child == node->children.end()) return nullptr;
    child->used = now;
    node = &*child;
  }
  return node;
}

SharedState PrefixCache::find(std::span<const int32_t> tokens, int64_t chunks, uint64_t now) {
  const Node* const node = chunks > 0 ? walk(tokens, chunks, now) : nullptr;
  return node != nullptr ? node->state : nullptr;
}

void PrefixCache::insert(std::span<const int32_t> tokens, int64_t chunks, SharedState state,
                         uint64_t now) {
  if (chunks < 1 || walk(tokens, chunks, now) != nullptr) return;
  Node* const parent = walk(tokens, chunks - 1, now);
  if (parent == nullptr) return;
  const std::span<const int32_t> part = chunk_of(tokens, chunks - 1);
  const int64_t bytes = state->bytes();
  parent->children.push_back({.tokens = {part.begin(), part.end()},
                              .state = std::move(state),
                              .bytes = bytes,
                              .used = now,
                              .children = {}});
  bytes_ += bytes;
}

PrefixCache::Leaf PrefixCache::oldest_leaf() {
  Leaf best;
  std::vector<Node*> open{&root_};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    for (auto child = node->children.begin(); child != node->children.end(); ++child) {
      if (!child->children.empty()) {
        open.push_back(&*child);
      } else if (best.parent == nullptr || child->used < best.node->used) {
        best = {node, child};
      }
    }
  }
  return best;
}

int64_t PrefixCache::evict() {
  const Leaf leaf = oldest_leaf();
  if (leaf.parent == nullptr) return 0;
  const int64_t bytes = leaf.node->bytes;
  leaf.parent->children.erase(leaf.node);
  bytes_ -= bytes;
  return bytes;
}

}  // namespace fovea
