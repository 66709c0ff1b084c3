// Memberships of tokens in groups, as models and adversaries make them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fovea/base/rng.h"

namespace fovea::testing {

inline uint64_t random_set(Rng& random, int64_t groups, int64_t top_k) {
  uint64_t set = 0;
  for (int64_t chosen = 0; chosen < top_k;) {
    const auto bit = static_cast<int64_t>(random.uniform() * static_cast<double>(groups));
    const uint64_t with = set | uint64_t{1} << std::min(bit, groups - 1);
    chosen += with != set ? 1 : 0;
    set = with;
  }
  return set;
}

/// Every token chooses anew.
inline std::vector<uint64_t> random_sets(int64_t tokens, int64_t groups, int64_t top_k,
                                         uint64_t seed) {
  Rng random(seed);
  std::vector<uint64_t> sets;
  for (int64_t n = 0; n < tokens; ++n) sets.push_back(random_set(random, groups, top_k));
  return sets;
}

/// Tokens keep their choice for `run` tokens on average.
inline std::vector<uint64_t> sticky_sets(int64_t tokens, int64_t groups, int64_t top_k, int64_t run,
                                         uint64_t seed) {
  Rng random(seed);
  std::vector<uint64_t> sets;
  for (int64_t n = 0; n < tokens; ++n) {
    const bool anew = n == 0 || random.uniform() * static_cast<double>(run) < 1.0;
    sets.push_back(anew ? random_set(random, groups, top_k) : sets.back());
  }
  return sets;
}

/// One of all sorts, with names. Some have tokens without any group.
inline std::vector<std::pair<std::string, std::vector<uint64_t>>> member_patterns(int64_t tokens,
                                                                                  int64_t groups) {
  std::vector<uint64_t> one(static_cast<size_t>(tokens), 1), alternating, sorted, none, rare;
  for (int64_t n = 0; n < tokens; ++n) {
    alternating.push_back(uint64_t{1} << n % groups);
    sorted.push_back(uint64_t{1} << n * groups / tokens);
    none.push_back(n % 3 == 0 ? 0 : uint64_t{1} << n % groups);
    rare.push_back(n == 0 || n == tokens - 1 ? uint64_t{1} << (groups - 1) : 1);
  }
  return {{"random", random_sets(tokens, groups, 1, 1)},
          {"random pairs", random_sets(tokens, groups, 2, 2)},
          {"sticky", sticky_sets(tokens, groups, 1, 20, 3)},
          {"sticky pairs", sticky_sets(tokens, groups, 2, 20, 4)},
          {"one group", one},
          {"alternating", alternating},
          {"sorted", sorted},
          {"some in no group", none},
          {"first and last alone", rare}};
}

}  // namespace fovea::testing
