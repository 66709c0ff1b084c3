// The tuning of a comparison: each variant gets the best of several values of one key (a learning
// rate, say), chosen by a seed that does not count.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "fovea/compare/config.h"
#include "fovea/report/compare_result.h"

namespace fovea {

/// The trials as a comparison of their own: every variant with every value, the tuning's seed
/// alone, no tasks, samples or maps.
CompareConfig tuning_trials(const CompareConfig& config);

/// The name of a variant's trial with the value of this place in `compare.tuning.values`.
std::string trial_name(const std::string& variant, size_t value);

/// Takes the value of each variant's best finished trial in `tried` into its `set`, and says what
/// was tried. Without a finished trial the first value.
std::vector<TuningPoint> choose_values(const CompareResult& tried, CompareConfig& config);

}  // namespace fovea
