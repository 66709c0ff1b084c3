// BABILong: the facts of a bAbI story scattered over a book (spec 9.7).
//
// The prompt has BABILong's parts in its order: instruction, examples, the form of the answer, the
// context between <context> marks, the question. Instruction and form are in our words; the two
// examples are short bAbI samples of the training split. Scored as BABILong scores.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fovea/eval/made/babi.h"
#include "fovea/eval/made/prose.h"
#include "fovea/eval/made/sample.h"
#include "fovea/eval/task_item.h"

namespace fovea {

inline constexpr int64_t kBabilongAnswerTokens = 20;
inline constexpr int64_t kFewestSentenceTokens = 10;  ///< of the noise; shorter ones are left out

/// Words of which exactly one is the answer, task 1 ... 5: rooms, or people and things.
std::span<const std::string_view> babilong_labels(int task);

/// 1 where the first sentence of `output`, lower case, names exactly one label that the question
/// does not name, and that is `target`; else 0.
double babilong_score(std::string_view output, std::string_view target, std::string_view question,
                      std::span<const std::string_view> labels);

struct BabilongTask {
  int task = 1;  ///< 1 ... 5
  std::vector<BabiSample> samples;
  std::vector<BabiSample> examples;  ///< of the training split, of which short ones are taken
  int64_t shots = 2;
};

/// The sentences of `prose` that have kFewestSentenceTokens at least. InputError where none has.
Prose noise_of(const Prose& prose, const Tokenizer& tokenizer);

/// The samples whose facts take at most half of `length` tokens, so that there is room for noise;
/// all of them for 0. ConfigError where none is left.
std::vector<BabiSample> samples_for(const std::vector<BabiSample>& samples,
                                    const Tokenizer& tokenizer, int64_t length);

/// Story `sample.number` (again from the first behind the last) with as much of the noise, from a
/// random sentence on, as fits; its last sentence may be cut. Facts stand in gaps between sentences
/// drawn uniformly with replacement, in their order. A length of 0 means the facts alone ("0K").
/// Axes: "length". ConfigError for fewer examples than shots, or a task outside 1 ... 5.
TaskItem babilong_question(const BabilongTask& task, const MadeSample& sample, const Prose& noise);

}  // namespace fovea
