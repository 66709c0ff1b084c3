// The choice among the tables of kernels (kernel_table.h) that this build has.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "fovea/kernels/common/isa.h"
#include "fovea/kernels/cpu/kernel_table.h"

namespace fovea::kernels {

/// A level of instructions with kernels of its own.
template <class Table>
struct KernelLevel {
  Isa isa = Isa::scalar;
  const Table& (*table)() = nullptr;
};

/// The levels of this build, ascending from scalar. The source that defines it is made by
/// cmake/FoveaKernels.cmake.
template <class Table>
std::span<const KernelLevel<Table>> kernel_levels();

/// The highest level not above the one in force.
template <class Table>
const KernelLevel<Table>& serving_level(std::span<const KernelLevel<Table>> levels, Isa in_force) {
  size_t n = levels.size() - 1;
  while (n > 0 && levels[n].isa > in_force) --n;
  return levels[n];
}

/// The kernels of chosen_isa(), or of the level below that serves it.
template <class Table>
const Table& chosen_kernels() {
  static const Table& chosen = serving_level(kernel_levels<Table>(), chosen_isa()).table();
  return chosen;
}

}  // namespace fovea::kernels
