// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/statistics.h"

#include <algorithm>

namespace fovea {

void SecondsHistogram::add(double seconds) {
  const auto bound = std::ranges::lower_bound(kBounds, seconds);
  ++counts[static_cast<size_t>(bound - kBounds.begin())];
  ++count;
  sum += seconds;
}

}  // namespace fovea
