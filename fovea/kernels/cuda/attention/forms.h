// Forms of the CUDA attention kernels: which settings a compiled kernel knows, and which one serves
// a call.
//
// A kernel is compiled for a form of the score and one of the mask. The smallest form that knows
// all settings of a call serves it. Forms of many settings read neutral values for those that a
// call does not use.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea::kernels::cuda {

/// Matrix instructions: of a warp (compute capability 8.0 on), of four warps (9.0 alone).
enum class Generation : uint8_t { mma, wgmma };

/// `gate`: plain, with a soft gate of Focus of 8 columns; `gate_any`: with one of 16, temperature
/// and ALiBi; `any` has no gate.
enum class ScoreForm : uint8_t { plain, temperature, soft_cap, alibi, any, gate, gate_any };
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
  int gate_columns = 0;  ///< 0: no gate
  bool temperature = false, soft_cap = false, alibi = false;
  bool causal = true, window = false, documents = false;
};

/// Columns of a soft gate come in chunks of 8; a kernel has room for as many.
constexpr int gate_chunks(ScoreForm form) {
  return form == ScoreForm::gate_any ? 2 : form == ScoreForm::gate ? 1 : 0;
}
constexpr int kGateColumns = 8 * gate_chunks(ScoreForm::gate_any);

constexpr bool knows(ScoreForm form, const CallForm& call) {
  if ((call.gate_columns > 0) != (gate_chunks(form) > 0)) return false;
  if (call.gate_columns > 8 * gate_chunks(form)) return false;
  const int settings = call.temperature + call.soft_cap + call.alibi;
  switch (form) {
    case ScoreForm::any:
      return true;
    case ScoreForm::gate_any:
      return !call.soft_cap;
    case ScoreForm::plain:
    case ScoreForm::gate:
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
