// Strips and their steps, from the visits of one row of the batch (internal to kernels/cpu).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/kernels/common/visits.h"
#include "fovea/kernels/cpu/mixing/mixing_table.h"

namespace fovea::kernels {

/// Which steps every strip visits, and where documents begin.
struct StripPlan {
  std::vector<int32_t> steps;
  std::vector<int64_t> begin;
  std::vector<int32_t> first_row;  ///< of every query's document; empty: one document
  int64_t most = 0, blocks = 0;

  int64_t strips() const { return static_cast<int64_t>(begin.size()) - 1; }
  StripSteps view() const { return {steps.data(), begin.data(), most, blocks}; }
};

/// A strip visits the blocks of keys that its rows or the rows it reads, `earlier` before it, see;
/// where convolutions make results lag, also the block behind each.
StripPlan make_strip_plan(const Visits& visits, int64_t strip_rows, int64_t earlier, bool lags);

/// Borders of `parts` ranges of strips with about equally many steps: [parts + 1].
std::vector<int64_t> even_ranges(const StripPlan& plan, int64_t parts);

}  // namespace fovea::kernels
