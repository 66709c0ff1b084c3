// What decoding is measured by: how fast this machine reads memory.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "fovea/base/error.h"

namespace fovea {

using Clock = std::chrono::steady_clock;

inline double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// GB/s, the best of five passes: sums 1 GiB, several streams a thread; far larger than any cache.
inline double read_bandwidth() {
  using Vector = uint64_t __attribute__((vector_size(64)));
  constexpr int64_t kVectors = (int64_t{1} << 30) / static_cast<int64_t>(sizeof(Vector));
  static std::vector<uint64_t> memory(kVectors * 8, 1);
  const auto* data = reinterpret_cast<const Vector*>(memory.data());
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const auto start = Clock::now();
    uint64_t total = 0;
#pragma omp parallel for reduction(+ : total) schedule(static)
    for (int64_t block = 0; block < 256; ++block) {
      constexpr int64_t size = kVectors / 256;
      Vector a{}, b{}, c{}, d{};
      const Vector* at = data + block * size;
      for (int64_t i = 0; i < size / 4; ++i) {
        a += at[i];
        b += at[i + size / 4];
        c += at[i + size / 2];
        d += at[i + 3 * (size / 4)];
      }
      const Vector sum = a + b + c + d;
      for (int i = 0; i < 8; ++i) total += sum[i];
    }
    require<NumericalError>(total == kVectors * 8, "bandwidth", "the sum is {}", total);
    best = std::max(best, static_cast<double>(1 << 30) / 1e6 / milliseconds_since(start));
  }
  return best;
}

}  // namespace fovea
