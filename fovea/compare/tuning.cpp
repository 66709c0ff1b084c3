// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/tuning.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"

namespace fovea {
namespace {

ConfigNode with_value(const ConfigNode& set, const TuningConfig& tuning, size_t value) {
  ConfigNode out = set.kind == ConfigNode::Kind::map ? set : ConfigNode::make_map(set.place);
  std::erase_if(out.fields, [&](const ConfigField& field) { return field.first == tuning.key; });
  out.fields.push_back({tuning.key, ConfigNode::make_scalar(tuning.values[value], set.place)});
  return out;
}

}  // namespace

std::string trial_name(const std::string& variant, size_t value) {
  return fmt::format("{}+tuning-{}", variant, value);
}

CompareConfig tuning_trials(const CompareConfig& config) {
  CompareConfig trials = config;
  trials.variants.clear();
  for (const VariantConfig& variant : config.variants) {
    for (size_t i = 0; i < config.tuning.values.size(); ++i) {
      VariantConfig& trial = trials.variants.emplace_back(variant);
      trial.name = trial_name(variant.name, i);
      trial.set = with_value(variant.set, config.tuning, i);
    }
  }
  trials.reference = trial_name(config.reference, 0);
  trials.seeds = {config.tuning.seed};
  trials.tuning = {};
  trials.tasks = {};
  trials.baselines.clear();
  trials.sample.tokens = trials.map.tokens = 0;
  return trials;
}

std::vector<TuningPoint> choose_values(const CompareResult& tried, CompareConfig& config) {
  std::vector<TuningPoint> points;
  for (VariantConfig& variant : config.variants) {
    const size_t first = points.size();
    size_t best = first;
    for (size_t i = 0; i < config.tuning.values.size(); ++i) {
      TuningPoint point{.variant = variant.name, .value = config.tuning.values[i]};
      const std::string name = trial_name(variant.name, i);
      for (const CompareVariant& trial : tried.variants)
        if (trial.name == name && !trial.runs.empty() && trial.runs.front().finished())
          point.bits_per_byte = trial.runs.front().validation_bits_per_byte;
      points.push_back(point);
      const double lowest = points[best].bits_per_byte;
      if (std::isfinite(point.bits_per_byte) &&
          !(std::isfinite(lowest) && lowest <= point.bits_per_byte))
        best = points.size() - 1;
    }
    points[best].chosen = true;
    variant.set = with_value(variant.set, config.tuning, best - first);
  }
  return points;
}

}  // namespace fovea
