// The mixing kernels of one instruction set as a table (kernel_table.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/kernel_table.h"
#include "fovea/kernels/cpu/mixing/mixing_forward.h"

namespace fovea::kernels {
namespace {

template <class T, class P>
MixingTable<T> mixing_table_of(const char* isa, const MixingGradientPass<T>& gradient) {
  return {.isa = isa,
          .panel = kPanel,
          .elements = P::kElements,
          .lanes = kLanes,
          .pack = pack_panel<T, P>,
          .forward_scratch = mixing_forward_floats<T, P>,
          .forward = forward_strips<T, P>,
          .gradient = gradient};
}

template <Isa isa, class T>
MixingTable<T> table_of() {
  return mixing_table_of<T, FastestWords>(kIsaNames[static_cast<int>(isa)],
                                          kernel_table<MixingGradientPass<T>, isa>());
}

}  // namespace
}  // namespace fovea::kernels
