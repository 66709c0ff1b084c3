// A row of the list of units (units.h) from its form.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/attention/shapes.h"
#include "fovea/kernels/cuda/attention/units.h"

namespace fovea::kernels::cuda {

template <Generation kGeneration, int D, ScoreForm kScore, MaskForm kMask>
constexpr Unit unit_of() {
  constexpr bool kGathers = kMask == MaskForm::groups || kMask == MaskForm::groups_several;
  Unit unit{.generation = kGeneration, .head_dim = D, .score = kScore, .mask = kMask};
  unit.before = before_backward<D>;
  if constexpr (kGeneration == Generation::mma) {
    unit.forward_shared_bytes = ForwardMmaShape<D>::kShared;
    unit.backward_shared_bytes = BackwardMmaShape<D>::kShared;
    unit.forward = mma_forward<D, kScore, kMask>;
    unit.backward = mma_backward<D, kScore, kMask>;
    unit.after = after_mma_backward<D>;
  } else {
    unit.forward_shared_bytes = ForwardWgmmaShape<D, kGathers, (gate_chunks(kScore) > 0)>::kShared;
    unit.backward_shared_bytes = BackwardWgmmaShape<D>::kShared;
    unit.forward = wgmma_forward<D, kScore, kMask>;
    unit.backward = wgmma_backward<D, kScore, kMask>;
    unit.after = after_wgmma_backward<D>;
  }
  return unit;
}

}  // namespace fovea::kernels::cuda
