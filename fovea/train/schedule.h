// Learning-rate schedules: the multiplier of a step (spec 3.7).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "fovea/config/fields.h"

namespace fovea {

struct ScheduleConfig {
  enum class Kind { cosine, linear, constant, inverse_sqrt };

  Kind kind = Kind::cosine;
  int64_t warmup_steps = -1;             ///< -1 = by warmup_fraction
  double warmup_fraction = 0.02;         ///< of the whole budget
  double final_ratio = 0.1;              ///< m: the floor, as a share of the peak
  bool constant_ignores_warmup = false;  ///< lingua's form of `constant`

  void describe(FieldVisitor& v);
  bool operator==(const ScheduleConfig&) const = default;
};
std::span<const std::string_view> enum_names(ScheduleConfig::Kind);

/// Multiplier at `step` (from 0) of `total`, with `warmup` steps; real numbers, so that a time
/// budget can pass seconds. With u = (step - warmup) / (total - warmup): step/warmup before warmup;
/// then linear u m + 1 - u, cosine m + (1 - m)(1 + cos pi u) / 2, constant 1, inverse_sqrt max(m,
/// min(step/warmup, sqrt(warmup/step))).
double schedule_multiplier(const ScheduleConfig& config, double step, double warmup, double total);

/// Warm-up of `config` in steps of a run of `total` steps.
int64_t warmup_steps(const ScheduleConfig& config, int64_t total);

}  // namespace fovea
