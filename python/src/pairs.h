// Which keys the queries of a call see: visits of its mask, plans of groups and blocks, or ranges
// of keys for a few queries.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "call.h"
#include "fovea/kernels/backend.h"
#include "fovea/kernels/common/grouped_plan.h"
#include "fovea/kernels/common/visits.h"

namespace fovea::python {

/// Plans or visits: one for all rows of the batch, or one each. On the CPU one of the three is not
/// empty; on a GPU groups and blocks have none.
struct Pairs {
  /// `forward`: a few queries may read the keys where they lie (kernels::AttentionDecode).
  Pairs(const Call& call, const kernels::Backend& backend, bool forward);

  std::vector<GroupedPlan> plans;
  std::vector<RowVisits> rows;  ///< [batch][queries]
  std::vector<Visits> visits;
};

}  // namespace fovea::python
