// Predicted costs of plans, in scores a query and head, from which the cheapest is chosen (internal
// to the plans).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "fovea/kernels/common/grouped_far.h"

namespace fovea {

/// All pairs tile by tile in the tokens' order (kind block_sparse), and near pairs alone (kind
/// classes): tiles of some blocks, counted.
double tiles_cost(const GroupedPlan& plan);
double near_cost(const GroupedPlan& plan);

/// The far pass of a plan that has its lists.
double classes_cost(const GroupedPlan& plan);
/// A bound of it from the sizes of the classes alone: it saves building lists that lose.
double least_classes_cost(const GroupedPlan& plan, const MemberSets& sets);

/// The far pass by groups, from their sizes alone and ragged ends.
double groups_cost(const GroupedPlan& plan, std::span<const uint64_t> members);

}  // namespace fovea
