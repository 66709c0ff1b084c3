// Two sides of a benchmark in turn in one process: times, their quartiles, the ratio of each pair.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fovea {

/// A function to time; what it returns is thrown away.
using Action = std::function<void()>;

inline double milliseconds(const Action& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

inline nlohmann::ordered_json quartiles(std::vector<double> x) {
  std::ranges::sort(x);
  const auto at = [&x](double share) {
    return x[static_cast<size_t>(share * double(x.size() - 1))];
  };
  return {{"q1", at(0.25)}, {"median", at(0.5)}, {"q3", at(0.75)}};
}

/// Times of `ours` and `other` in turn, at most `pairs` times and at least five; no more than five
/// after `budget` seconds. ratio = other / ours.
inline nlohmann::ordered_json measure_pairs(int pairs, double budget, const Action& ours,
                                            const Action& other) {
  std::vector<double> a, b, ratio;
  ours();
  other();
  double spent = 0.0;
  for (int n = 0; n < pairs && (n < 5 || spent < budget * 1e3); ++n) {
    a.push_back(milliseconds(ours));
    b.push_back(milliseconds(other));
    ratio.push_back(b.back() / a.back());
    spent += a.back() + b.back();
  }
  return {{"pairs", a.size()},
          {"fovea_ms", quartiles(a)},
          {"other_ms", quartiles(b)},
          {"ratio", quartiles(ratio)}};
}

/// Bytes of a line of /proc/self/status.
inline int64_t memory_field(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

/// The most that the process grows while `action` runs.
inline int64_t peak_bytes(const Action& action) {
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak starts anew
  const int64_t before = memory_field("VmRSS");
  action();
  return memory_field("VmHWM") - before;
}

}  // namespace fovea
