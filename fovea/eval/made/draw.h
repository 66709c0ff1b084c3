// Random draws of the made tasks: orders, subsets, numbers, UUIDs, words.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/base/rng.h"

namespace fovea {

/// Uniform in [0, n), n >= 1.
inline int64_t draw_below(Rng& rng, int64_t n) {
  return static_cast<int64_t>(rng.below(static_cast<uint64_t>(n)));
}

template <class T>
void shuffle(Rng& rng, std::vector<T>& values) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[rng.below(i)]);
}

/// `count` different numbers of 0 ... n-1, in the order drawn. count <= n.
std::vector<int64_t> draw_subset(Rng& rng, int64_t n, int64_t count);

enum class DrawKind {
  numbers,     ///< seven digits, the first not 0
  uuids,       ///< version 4
  words,       ///< adjective-noun
  codes,       ///< six lower-case letters
  variables,   ///< five upper-case letters
  variables3,  ///< three upper-case letters
};
std::string draw(Rng& rng, DrawKind kind);

/// Draws that never give the same text twice, nor one of `taken`.
class DistinctDraws {
 public:
  explicit DistinctDraws(DrawKind kind, std::set<std::string> taken = {})
      : kind_(kind), taken_(std::move(taken)) {}
  /// ConfigError where the kind has hardly any text left.
  std::string operator()(Rng& rng);

 private:
  DrawKind kind_;
  std::set<std::string> taken_;
};

}  // namespace fovea
