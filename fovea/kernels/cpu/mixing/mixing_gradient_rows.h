// The backward mixing kernels of one instruction set as a table (kernel_table.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/kernel_table.h"
#include "fovea/kernels/cpu/mixing/mixing_backward.h"

namespace fovea::kernels {
namespace {

template <Isa isa, class T>
constexpr MixingGradientPass<T> table_of() {
  return {mixing_gradient_floats<T, FastestWords>, mixing_gradient_strips<T, FastestWords>};
}

}  // namespace
}  // namespace fovea::kernels
