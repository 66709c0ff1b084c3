// The CUDA attention kernels of every form, compiled for the host: each thread of a block is a
// fiber (fovea/kernels/cuda/emulate.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/attention/gate_rows.cuh"
#include "fovea/kernels/cuda/attention/launch_mma.cuh"
#include "fovea/kernels/cuda/attention/launch_rows.cuh"
#include "fovea/kernels/cuda/attention/launch_wgmma.cuh"
#include "fovea/kernels/cuda/attention/plan.cuh"
#include "fovea/kernels/cuda/attention/unit_of.h"

namespace fovea::kernels::cuda {

std::span<const Unit> units() {
  static const Unit all[] = {
      unit_of<Generation::wgmma, 64, ScoreForm::plain, MaskForm::full>(),
      unit_of<Generation::wgmma, 64, ScoreForm::plain, MaskForm::causal>(),
      unit_of<Generation::wgmma, 64, ScoreForm::temperature, MaskForm::causal>(),
      unit_of<Generation::wgmma, 64, ScoreForm::soft_cap, MaskForm::causal>(),
      unit_of<Generation::wgmma, 64, ScoreForm::alibi, MaskForm::causal>(),
      unit_of<Generation::wgmma, 64, ScoreForm::plain, MaskForm::window>(),
      unit_of<Generation::wgmma, 64, ScoreForm::plain, MaskForm::documents>(),
      unit_of<Generation::wgmma, 64, ScoreForm::any, MaskForm::any>(),
      unit_of<Generation::wgmma, 128, ScoreForm::plain, MaskForm::causal>(),
      unit_of<Generation::wgmma, 128, ScoreForm::any, MaskForm::any>(),
      unit_of<Generation::mma, 64, ScoreForm::plain, MaskForm::full>(),
      unit_of<Generation::mma, 64, ScoreForm::plain, MaskForm::causal>(),
      unit_of<Generation::mma, 64, ScoreForm::any, MaskForm::any>(),
      unit_of<Generation::mma, 128, ScoreForm::any, MaskForm::any>(),
      unit_of<Generation::wgmma, 64, ScoreForm::gate, MaskForm::documents>(),
      unit_of<Generation::wgmma, 64, ScoreForm::gate_any, MaskForm::any>(),
      unit_of<Generation::wgmma, 128, ScoreForm::gate, MaskForm::documents>(),
      unit_of<Generation::mma, 64, ScoreForm::gate_any, MaskForm::any>(),
      unit_of<Generation::wgmma, 64, ScoreForm::plain, MaskForm::groups>(),
      unit_of<Generation::wgmma, 64, ScoreForm::plain, MaskForm::groups_several>(),
      unit_of<Generation::wgmma, 64, ScoreForm::plain, MaskForm::local_rest>(),
      unit_of<Generation::mma, 64, ScoreForm::plain, MaskForm::groups>(),
      unit_of<Generation::mma, 64, ScoreForm::plain, MaskForm::groups_several>(),
      unit_of<Generation::mma, 64, ScoreForm::plain, MaskForm::local_rest>(),
  };
  return all;
}

}  // namespace fovea::kernels::cuda
