// A random permutation of 0 .. n-1 that needs no table.
//
// A Feistel network over the smallest even number of bits that holds n, with Philox as round
// function. Values outside are fed in again until they fall inside (cycle walking), at most four
// tries on average.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "fovea/base/rng.h"

namespace fovea {

class Permutation {
 public:
  /// n >= 1.
  Permutation(uint64_t seed, uint64_t n)
      : seed_(seed),
        n_(n),
        half_bits_(static_cast<int>(std::bit_width(n > 1 ? n - 1 : 1) + 1) / 2) {}

  /// The image of i in [0, n): a bijection for each (seed, n).
  uint64_t operator()(uint64_t i) const {
    do {
      i = shuffle(i);
    } while (i >= n_);
    return i;
  }

 private:
  // Four are pseudorandom for ideal rounds (Luby, Rackoff); two to spare.
  static constexpr uint64_t kRounds = 6;

  uint64_t shuffle(uint64_t value) const {
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = value >> half_bits_, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (philox(seed_, right, round)[0] & mask);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  uint64_t seed_, n_;
  int half_bits_;  // up to 32, as much as one Philox word gives
};

}  // namespace fovea
