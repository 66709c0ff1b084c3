// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace fovea {

std::span<const std::string_view> enum_names(ScheduleConfig::Kind) {
  static constexpr std::array<std::string_view, 4> names = {"cosine", "linear", "constant",
                                                            "inverse_sqrt"};
  return names;
}

void ScheduleConfig::describe(FieldVisitor& v) {
  v.choice(
      {"kind", "cosine, linear, constant, inverse_sqrt: how the learning rate falls after warm-up"},
      kind);
  v.integer({"warmup_steps", "steps of linear warm-up; -1 = by warmup_fraction", {-1, 1e12}},
            warmup_steps);
  v.real({"warmup_fraction", "warm-up as a share of the budget, 0 ... 1", ranges::kShare},
         warmup_fraction);
  v.real(
      {"final_ratio", "floor of the learning rate as a share of its peak, 0 ... 1", ranges::kShare},
      final_ratio);
  v.boolean({"constant_ignores_warmup", "constant: no warm-up even if one is set (lingua's form)"},
            constant_ignores_warmup);
}

double schedule_multiplier(const ScheduleConfig& config, double step, double warmup, double total) {
  using Kind = ScheduleConfig::Kind;
  if (config.kind == Kind::constant && config.constant_ignores_warmup) return 1.0;
  if (config.kind == Kind::inverse_sqrt) {
    const double w = std::max(warmup, 1.0);  // without warm-up the peak is at step 0
    const double rising = warmup > 0.0 ? step / warmup : 1.0;
    return std::max(config.final_ratio, std::min(rising, std::sqrt(w / std::max(step, w))));
  }
  if (step < warmup) return step / warmup;
  const double u = std::clamp((step - warmup) / std::max(total - warmup, 1e-12), 0.0, 1.0);
  const double m = config.final_ratio;
  switch (config.kind) {
    case Kind::cosine:
      return m + 0.5 * (1.0 - m) * (1.0 + std::cos(std::numbers::pi * u));
    case Kind::linear:
      return u * m + (1.0 - u);
    case Kind::inverse_sqrt:
    case Kind::constant:
      break;
  }
  return 1.0;
}

int64_t warmup_steps(const ScheduleConfig& config, int64_t total) {
  if (config.warmup_steps >= 0) return config.warmup_steps;
  return std::llround(config.warmup_fraction * static_cast<double>(total));
}

}  // namespace fovea
