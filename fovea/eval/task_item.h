// One question of a task: the text that a model reads, and the right answers (spec 9.1, 9.2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fovea {

/// A question with endings to choose from has `choices`; one that the model answers in its own
/// words has `references`.
struct TaskItem {
  int64_t index = 0;    ///< its row in the data, or its number among the samples made
  std::string context;  ///< the prompt, shots and description included
  /// Endings, each with the space that it begins with ("␣Paris").
  std::vector<std::string> choices;
  /// Partial scoring (WinoGrande): context k goes with choice k. Empty: `context` goes with all.
  std::vector<std::string> contexts;
  int64_t gold = -1;                    ///< the right one of `choices`; of several the first
  std::vector<bool> labels;             ///< multiple_true: which of `choices` are true
  std::vector<std::string> references;  ///< right answers of a generated text
  std::string group;                    ///< subject, difficulty ...: scored by group as well
  /// Where a made question stands on the axes of a picture: "length" in tokens, "depth" in 0 ... 1.
  std::map<std::string, double> axes;
};

}  // namespace fovea
