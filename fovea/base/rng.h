// Counter-based random numbers: Philox 4x32-10 (Salmon et al., SC 2011).
//
// A value is a pure function of (key, counter), so any order of evaluation, tiling or number of
// threads draws the same numbers. Everything random in Fovea (data order, dropout, initialisation,
// sampling) comes from here.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace fovea {

using PhiloxBlock = std::array<uint32_t, 4>;

/// One Philox 4x32-10 block: 128 random bits from a 64-bit key and a 128-bit counter.
constexpr PhiloxBlock philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  PhiloxBlock c{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// Uniform in [0, 1) with 24 bits.
constexpr float uniform01(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

/// Mixes a value into a seed: distinct streams for distinct (seed, value).
constexpr uint64_t mix_seed(uint64_t seed, uint64_t value) {
  const PhiloxBlock block = philox(seed, value, 0x466F766561ull);
  return (static_cast<uint64_t>(block[1]) << 32) | block[0];
}

/// A sequence of random numbers with a two-word state (key, next counter) that can be saved and
/// restored.
class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t counter = 0) : key_(seed), counter_(counter) {}

  uint64_t next_u64() {
    const PhiloxBlock block = philox(key_, counter_++, 0);
    return (static_cast<uint64_t>(block[1]) << 32) | block[0];
  }
  /// Uniform in [0, 1) with 53 bits.
  double uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }
  /// Uniform integer in [0, n), n >= 1.
  uint64_t below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next_u64()) * n) >> 64);
  }
  /// Standard normal (Box-Muller; one value a call).
  double normal() {
    const double u = 1.0 - uniform(), v = uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }

  uint64_t seed() const { return key_; }
  uint64_t counter() const { return counter_; }

 private:
  uint64_t key_;
  uint64_t counter_;
};

}  // namespace fovea
