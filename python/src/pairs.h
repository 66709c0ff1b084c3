// Which keys the queries of a call see: visits of its mask, or plans of groups and blocks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "call.h"
#include "fovea/kernels/common/grouped_plan.h"
#include "fovea/kernels/common/visits.h"

namespace fovea::python {

/// One for all rows of the batch, or one each. Visits where there are no plans.
struct Pairs {
  explicit Pairs(const Call& call);

  std::vector<GroupedPlan> plans;
  std::vector<Visits> visits;
};

}  // namespace fovea::python
