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

#include "fovea/runtime/machine.h"

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

/// Times of two sides, pair by pair.
struct PairedTimes {
  std::vector<double> ours, other;

  void add(double our_time, double other_time) {
    ours.push_back(our_time);
    other.push_back(other_time);
  }
  /// Quartiles of both under these names and of the ratios other / ours.
  nlohmann::ordered_json quartiles_as(const std::string& our_name,
                                      const std::string& other_name) const {
    std::vector<double> ratio;
    for (size_t n = 0; n < ours.size(); ++n) ratio.push_back(other[n] / ours[n]);
    return {
        {our_name, quartiles(ours)}, {other_name, quartiles(other)}, {"ratio", quartiles(ratio)}};
  }
};

/// What `ours` computes, and the peak of the threads in use at that moment.
struct PeakMeter {
  double flops = 0.0;
  std::function<double()> gflops;  // takes milliseconds; empty: no share
};

/// Times of `ours` and `other` in turn, at most `pairs` times and at least five; no more than five
/// after `budget` seconds. ratio = other / ours. The share of the peak is that of each round: a
/// shared machine changes its speed within seconds.
inline nlohmann::ordered_json measure_pairs(int pairs, double budget, const Action& ours,
                                            const Action& other, const PeakMeter& peak = {}) {
  PairedTimes times;
  std::vector<double> peaks, shares;
  ours();
  other();
  double spent = 0.0;
  for (int n = 0; n < pairs && (n < 5 || spent < budget * 1e3); ++n) {
    const double before = peak.gflops ? peak.gflops() : 0.0;
    const double our_time = milliseconds(ours);
    if (peak.gflops) {
      peaks.push_back(0.5 * (before + peak.gflops()));
      shares.push_back(peak.flops / our_time * 1e-6 / peaks.back());
    }
    times.add(our_time, milliseconds(other));
    spent += times.ours.back() + times.other.back();
  }
  nlohmann::ordered_json json{{"pairs", times.ours.size()}};
  json.update(times.quartiles_as("fovea_ms", "other_ms"));
  if (!peaks.empty()) {
    json["share_of_peak"] = quartiles(shares);
    json["peak_gflops"] = quartiles(peaks);
  }
  return json;
}

/// Adds `results` to a file of results, in place of those of equal names, with the command line,
/// the code's version and the machine. `ratio` says what the ratios are. Nothing where `path` is
/// empty.
inline void merge_results(const std::string& path, const std::string& benchmark,
                          const std::string& ratio, int argc, char** argv,
                          const std::vector<nlohmann::ordered_json>& results) {
  if (path.empty()) return;
  nlohmann::ordered_json file;
  if (std::ifstream in(path); in) file = nlohmann::ordered_json::parse(in);
  std::string command;
  for (int n = 1; n < argc; ++n) command += (n > 1 ? " " : "") + std::string(argv[n]);
  file.update({{"benchmark", benchmark},
               {"ratio", ratio},
               {"commands", {{command, code_version()}}},
               {"machine", machine_summary(at::kCPU)}},
              /*merge_objects=*/true);
  for (const nlohmann::ordered_json& result : results) {
    nlohmann::ordered_json kept = nlohmann::ordered_json::array({result});
    for (const nlohmann::ordered_json& old :
         file.value("results", nlohmann::ordered_json::array())) {
      if (old["name"] != result["name"]) kept.insert(kept.end() - 1, old);
    }
    file["results"] = kept;
  }
  std::ofstream(path) << file.dump(2) << "\n";
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
