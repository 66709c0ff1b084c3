// The passes with a gate of one instruction set and type; included by attention_gated_<isa>.cpp and
// attention_gated_<isa>_bfloat16.cpp only.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/attention_backward.h"
#include "fovea/kernels/cpu/pointwise/attention_forward.h"

namespace fovea::kernels {
namespace {

template <class T, class P>
GatedPasses<T> gated_passes() {
  return {.forward = forward_block<T, P, true>, .backward = backward_block<T, P, true>};
}

}  // namespace
}  // namespace fovea::kernels
