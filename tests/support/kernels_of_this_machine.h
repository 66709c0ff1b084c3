// The kernels of every instruction set that this machine runs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/kernels/cpu/kernel_levels.h"

namespace fovea::testing {

/// Ascending from scalar.
template <class Table>
std::vector<const Table*> kernels_of_this_machine() {
  std::vector<const Table*> all;
  for (const kernels::KernelLevel<Table>& level : kernels::kernel_levels<Table>())
    if (level.isa <= found_isa()) all.push_back(&level.table());
  return all;
}

}  // namespace fovea::testing
