// Focus in attention of one token: the streams of groups as the kernels' gate and memberships
// (spec 11.2), without tensor operations.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/attention/cache/cache.h"
#include "fovea/attention/mechanisms/focus.h"
#include "fovea/kernels/common/mixing.h"

namespace fovea {

/// Inputs of Focus for the token of every sequence; null or 0 for an input that the gate does not
/// read.
struct TokenFocus {
  const float* groups = nullptr;     ///< assignments g, [sequence][spec.groups]
  const int64_t* members = nullptr;  ///< memberships, [sequence]
  float strength = 0.0f;             ///< the learned lambda
};

/// Focus of one layer, or none. Each token: append(), then gate() and members() of any sequence.
class TokenGate {
 public:
  explicit TokenGate(const FocusSpec& spec) : spec_(spec) {}

  bool active() const { return spec_.active(); }
  /// Appends the token's groups and memberships to the streams of every sequence.
  void append(AttentionCache& cache, const TokenFocus& token);
  /// The gate of the last `queries` tokens of sequence b on all its kept keys, of form none for
  /// hard Focus. It points into the cache and into memory that the next call overwrites.
  kernels::PairGate gate(int64_t b, int64_t queries);
  /// The mask of hard Focus on the same pairs. It is not active() for gates, nor where every two
  /// tokens share a group.
  kernels::MemberMask members(int64_t b, int64_t queries) const;

 private:
  void use_groups(int64_t b, int64_t queries, double gain, kernels::PairGate& gate);
  void use_shared_groups(int64_t b, int64_t queries, kernels::PairGate& gate);

  const FocusSpec spec_;
  double strength_ = 0.0;
  CachedRows groups_, members_;
  std::vector<float> query_, key_;  // factors that do not stand in a stream
};

}  // namespace fovea
