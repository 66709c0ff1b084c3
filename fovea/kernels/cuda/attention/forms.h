// Forms of the CUDA attention kernels: which settings a compiled kernel knows, and which one serves
// a call.
//
// A kernel is compiled for a form of the score and one of the mask. The smallest form that knows
// all settings of a call serves it; `any` knows all of them, and reads neutral values for those
// that a call does not use.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea::kernels::cuda {

/// Matrix instructions: of a warp (compute capability 8.0 on), of four warps (9.0 alone).
enum class Generation : uint8_t { mma, wgmma };

enum class ScoreForm : uint8_t { plain, temperature, soft_cap, alibi, any };
/// `groups`, `groups_several` and `local_rest` are the passes of hard Focus; `any`: causal, with
/// window, sinks and documents.
enum class MaskForm : uint8_t {
  full,
  causal,
  window,
  documents,
  any,
  groups,
  groups_several,
  local_rest
};

/// The settings of a call, as far as they choose a kernel.
struct CallForm {
  bool temperature = false, soft_cap = false, alibi = false;
  bool causal = true, window = false, documents = false;
};

constexpr bool knows(ScoreForm form, const CallForm& call) {
  if (form == ScoreForm::any) return true;
  const int settings = call.temperature + call.soft_cap + call.alibi;
  switch (form) {
    case ScoreForm::plain:
      return settings == 0;
    case ScoreForm::temperature:
      return call.temperature && settings == 1;
    case ScoreForm::soft_cap:
      return call.soft_cap && settings == 1;
    case ScoreForm::alibi:
      return call.alibi && settings == 1;
    default:
      return false;
  }
}

constexpr bool knows(MaskForm form, const CallForm& call) {
  switch (form) {
    case MaskForm::full:
      return !call.causal && !call.window && !call.documents;
    case MaskForm::causal:
      return call.causal && !call.window && !call.documents;
    case MaskForm::window:
      return call.causal && !call.documents;
    case MaskForm::documents:
      return call.causal && !call.window;
    case MaskForm::any:
      return call.causal;
    default:
      return false;
  }
}

}  // namespace fovea::kernels::cuda
