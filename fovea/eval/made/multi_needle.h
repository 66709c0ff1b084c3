// Several needles, one asked (spec 9.8, the retrieval test of the Multi-Token paper).
//
// "The magic number of {city} is {number}." for different cities and numbers stands in prose. The
// question is the beginning of one of these sentences; the answer is right where its first number
// is the needle's.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/eval/made/prose.h"
#include "fovea/eval/made/sample.h"
#include "fovea/eval/task_item.h"

namespace fovea {

inline constexpr int64_t kMultiNeedleAnswerTokens = 8;
/// Depths that samples take in turn: 0, 1/9 ... 1.
inline constexpr int64_t kMultiNeedleDepths = 10;

/// The first needle stands at the depth, the others at equal steps of (1 - depth) / needles behind
/// it, each before the sentence that it falls into. The prose begins anywhere. Axes: "length";
/// "depth" of the first needle. ConfigError unless needles is 1 to 20.
TaskItem multi_needle_question(int64_t needles, const MadeSample& sample, const Prose& prose);

}  // namespace fovea
