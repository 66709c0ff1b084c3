// Legal values of a number, stated where its key or option is described.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace fovea {

/// From `least` to `most`; both are legal, `most` unless its end is open. Ends of whole numbers
/// stay within 2^53, so that doubles hold them exactly.
struct Range {
  enum class End { closed, open };

  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  End end = End::closed;

  /// Whether somebody stated it: both ends are finite.
  bool stated() const;
  /// NaN is in no range.
  bool contains(double value) const;
  bool contains(int64_t value) const;
  /// "1 to 1024", "0 to below 1".
  std::string text() const;
};

namespace ranges {

// Ranges that several keys share.

/// The range of float32 with room for products: beyond it, a weight or a logit becomes infinite or
/// 0.
inline constexpr Range kPositive{1e-30, 1e30}, kNotNegative{0, 1e30}, kAnySign{-1e30, 1e30};
/// Shares and decays.
inline constexpr Range kShare{0, 1}, kBelowOne{0, 1, Range::End::open};
/// Positions of a text, distances between them, numbers of tokens in one pass.
inline constexpr double kMostPositions = 2147483648;  // 2^31
inline constexpr Range kPositionCounts{0, kMostPositions};
/// Rows of a batch and micro-batches of a step.
inline constexpr double kMostRows = 1 << 20;
/// Optimizer steps and tokens of a run: products with a step's tokens are checked apart.
inline constexpr Range kSteps{0, 1e12}, kRunTokens{0, 1e15};
inline constexpr Range kSeeds{0, 9007199254740992};  // 2^53: what JSON holds exactly
/// Layers of a model.
inline constexpr int64_t kMostLayers = 1024;
/// Layers counted from 0, threads of a process.
inline constexpr Range kLayerIndices{0, kMostLayers - 1}, kThreads{0, 1024};

}  // namespace ranges

/// A number as people write it: 4096, 1e12, 0.5.
std::string plain_number(double value);

}  // namespace fovea
