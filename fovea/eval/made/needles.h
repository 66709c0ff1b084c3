// Needles in a haystack as RULER makes them (spec 9.4, NVIDIA/RULER): single, multi-key,
// multi-value and multi-query.
//
// A needle is a sentence "One of the special magic {type} for {key} is: {value}." In a haystack the
// keys are all different, and so are the values: every question has one answer.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "fovea/eval/made/draw.h"
#include "fovea/eval/made/prose.h"
#include "fovea/eval/made/sample.h"
#include "fovea/eval/task_item.h"

namespace fovea {

struct NeedleTask {
  /// One sentence again and again; prose; or other needles.
  enum class Haystack { noise, prose, needles };

  std::string_view name;
  std::string_view title;
  Haystack haystack = Haystack::prose;
  DrawKind key = DrawKind::words, value = DrawKind::numbers;
  int64_t keys = 1;     ///< needles that are hidden, without those of the haystack
  int64_t values = 1;   ///< of each key
  int64_t queries = 1;  ///< keys that are asked for

  int64_t answers() const { return values * queries; }
};

/// niah_single_1 ... 3, niah_multikey_1 ... 3, niah_multivalue, niah_multiquery.
std::span<const NeedleTask> needle_tasks();

/// Tokens that the answer may have, and that the prompt leaves free.
inline constexpr int64_t kNeedleAnswerTokens = 128;

/// Axes: "length" as asked; "depth" of the needle asked, of one of them where there are more.
/// `references` holds all values asked for. Needles stand at depths out of 40 points of 0 ... 1,
/// drawn without replacement, before sentence (or line) floor(depth * sentences).
TaskItem needle_question(const NeedleTask& task, const MadeSample& sample, const Prose& prose);

}  // namespace fovea
