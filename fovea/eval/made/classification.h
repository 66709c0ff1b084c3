// Classification by examples in the prompt (HELMET's many-shot ICL, spec 9.6).
//
// Labels are integers drawn anew for every question, so that a model can learn them from the
// examples alone. Guessing scores 1 / labels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/eval/made/sample.h"
#include "fovea/eval/task_item.h"

namespace fovea {

struct LabelledText {
  std::string text;
  int64_t label = 0;  ///< of ClassificationSet::labels
};

struct ClassificationSet {
  std::string name;
  std::vector<std::string> labels;  ///< sorted; of the training split
  std::vector<LabelledText> train, test;
};

/// train.csv and test.csv with the columns text and category (banking77). InputError with file:line
/// for a file that is not so, and for a test label without training examples.
ClassificationSet read_banking77(const std::filesystem::path& folder);
/// data_full.json of CLINC150: lists of [text, intent]; the out-of-scope lists are label 151, and
/// the validation lists are the test, as in HELMET.
ClassificationSet read_clinc150(const std::filesystem::path& folder);
/// TREC.train.label and TREC.test.label: "COARSE:fine question".
enum class TrecLabels { coarse, fine };
ClassificationSet read_trec(const std::filesystem::path& folder, TrecLabels labels);

inline constexpr int64_t kClassificationAnswerTokens = 20;

/// The order in which the test texts are asked: rounds of one of every label in random order.
std::vector<int64_t> balanced_order(const std::vector<LabelledText>& texts, int64_t labels,
                                    uint64_t seed);

/// Question on test text `test`. `shots` examples in rounds, each with one of every label in random
/// order; 0 = as many as fit into the sample's length. Axes: "shots" or "length".
TaskItem classification_question(const ClassificationSet& set, int64_t test, int64_t shots,
                                 const MadeSample& sample);

}  // namespace fovea
