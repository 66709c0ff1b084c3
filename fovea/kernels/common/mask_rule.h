// The keys that a query may see, as a rule instead of a tensor.
//
// A token is known by its document and its position in that document. The rule depends on these two
// alone, so packed batches, evicted caches and single sequences all use the same one. Sources: spec
// 0.1 (allowed), 4.7 (strided, fixed), 7.5 (sliding window i - j < W, sinks), 9.10 (documents).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea {

struct MaskRule {
  /// Long-range part of the pattern: `full` is everything inside the window, `strided` and `fixed`
  /// are spec 4.7.
  enum class Sparsity { full, strided, fixed };

  bool causal = true;
  /// W: keys with i - j < W (self included); 0 = no window. With `strided`: its local width w.
  int64_t window = 0;
  /// The first `sinks` positions of the document are always visible (when j <= i).
  int64_t sinks = 0;
  Sparsity sparsity = Sparsity::full;
  int64_t stride = 0;   ///< sigma of `strided`: also (i - j) mod sigma = 0
  int64_t block = 0;    ///< beta of `fixed`: same block floor(i / beta)
  int64_t summary = 0;  ///< c of `fixed`: also j mod beta >= beta - c

  bool operator==(const MaskRule&) const = default;
};

/// Document and position of one token. Positions count from the document's start.
struct TokenPlace {
  int64_t document = 0;
  int64_t position = 0;
};

/// The relation `allowed(i, j)`, used for every mask in Fovea.
constexpr bool allowed(const MaskRule& rule, TokenPlace query, TokenPlace key) {
  if (query.document != key.document) return false;
  const int64_t i = query.position, j = key.position;
  if (rule.causal && j > i) return false;
  if (j < rule.sinks && j <= i) return true;
  const int64_t distance = i > j ? i - j : j - i;
  switch (rule.sparsity) {
    case MaskRule::Sparsity::full:
      return rule.window == 0 || distance < rule.window;
    case MaskRule::Sparsity::strided:
      return distance < rule.window || (rule.stride > 0 && distance % rule.stride == 0);
    case MaskRule::Sparsity::fixed:
      return i / rule.block == j / rule.block || j % rule.block >= rule.block - rule.summary;
  }
  return false;
}

}  // namespace fovea
