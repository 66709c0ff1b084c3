// Mean, range and standard deviation of a few numbers.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/report/compare_result.h"

namespace fovea {

/// All NaN for no values.
Spread spread_of(const std::vector<double>& values);

}  // namespace fovea
