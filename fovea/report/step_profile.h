// StepProfile: time and FLOPs of training steps by operator, as a table, a JSON object and a
// picture.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/report/gnuplot.h"

namespace fovea {

/// One kind of operations, both passes: an entry a step.
struct ProfiledOperator {
  std::string name;
  std::vector<double> forward_seconds = {}, backward_seconds = {};
  double forward_flops = 0, backward_flops = 0;  ///< of one step
};

struct StepProfile {
  std::string run = {};      ///< name of the recipe
  std::string machine = {};  ///< for people
  std::string code_version = {}, torch_version = {}, dtype = {}, attention_path = {};
  int64_t threads = 0, parameters = 0;
  int64_t warmup = 0;                ///< steps before those
  int64_t tokens = 0;                ///< of one step
  std::vector<double> seconds = {};  ///< of each profiled step
  std::vector<ProfiledOperator> operators = {};

  int64_t steps() const { return static_cast<int64_t>(seconds.size()); }
  /// Seconds of a step that no operator took are those of "other", which this adds.
  void add_rest();
};

/// Quartiles by linear interpolation; NaN for no value.
struct Quartiles {
  double q1 = 0, median = 0, q3 = 0;
};
Quartiles quartiles_of(std::vector<double> values);

/// `profile.json`. `results` has a row an operator (docs/training.md): the form of a benchmark, so
/// that a claim (claim_evidence.h) can read it.
nlohmann::ordered_json to_json(const StepProfile& profile);
/// Milliseconds forward and backward, shares of time and FLOPs, GFLOP/s.
std::string profile_table(const StepProfile& profile, int64_t width);
/// Two bars an operator: its share of the time, and of the FLOPs.
GnuplotChart profile_chart(const StepProfile& profile);

/// Writes profile.json and profile.svg; returns why the picture could not be drawn, or "". IoError.
std::string save_profile(const StepProfile& profile, const std::filesystem::path& folder,
                         const GnuplotRunner& gnuplot = {});

}  // namespace fovea
