// Copying and induction: the word that stood after a given one. Scored by the log-likelihood of ten
// words of the text, so guessing scores 10 %.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/eval/made/sample.h"
#include "fovea/eval/task_item.h"

namespace fovea {

enum class CopyKind {
  copy,       ///< the list of words again from its start, up to the word asked
  induction,  ///< one word of the list again
};

inline constexpr int64_t kCopyChoices = 10;
/// Depths that samples take in turn: 0, 1/9 ... 1.
inline constexpr int64_t kCopyDepths = 10;

/// Different words in random order, then the beginning again (copy) or one of the words again
/// (induction); `choices` are the word that followed and nine others of the list. Axes: "length";
/// "depth" of the word asked in the list.
TaskItem copy_question(CopyKind kind, const MadeSample& sample);

}  // namespace fovea
