// The passes with a gate of one instruction set and type as a table (kernel_table.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/kernel_table.h"
#include "fovea/kernels/cpu/pointwise/attention_backward.h"
#include "fovea/kernels/cpu/pointwise/attention_forward.h"

namespace fovea::kernels {
namespace {

template <class T, class P>
constexpr GatedPasses<T> gated_passes() {
  return {.forward = forward_block<T, P, true>, .backward = backward_block<T, P, true>};
}

template <Isa isa, class T>
constexpr GatedPasses<T> table_of() {
  return gated_passes<T, FastestWords>();
}

}  // namespace
}  // namespace fovea::kernels
