// The scores of a model on a task: per question, per group, per cell of a picture, with the
// standard error (spec 9.1).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fovea {

/// One answered question: the contents of a line of the log beside the answer itself.
struct ItemScore {
  int64_t index = 0;
  std::string group;
  std::map<std::string, double> axes;
  /// By metric, each a mean over questions: "acc" 0 or 1. For `last_word` also "nll" (nats of the
  /// word), for `rolling` "nll", "words" and "bytes", of which perplexities are made.
  std::vector<std::pair<std::string, double>> values;
};

/// Mean over questions; `error` = sd / sqrt(n) with n - 1 in the deviation, NaN below two.
struct MetricScore {
  std::string name;
  double value = 0.0, error = 0.0;
  int64_t items = 0;
};

/// The questions that share a group, or a place on every axis.
struct PartScore {
  std::string group;
  std::map<std::string, double> axes;
  std::vector<MetricScore> metrics;
};

/// The causal pairs that the layers of a sparse attention read (task_pairs.h).
struct TaskPairs {
  double share = 1.0;     ///< of all pairs of the counted questions
  int64_t questions = 0;  ///< counted
  int64_t untouched = 0;  ///< of them: nothing is left out
  double tokens = 0.0;    ///< of a question, their mean
};

struct TaskScore {
  std::string task, title;
  std::string headline;  ///< which of `metrics` stands for the task
  double chance = -1.0;  ///< the score of guessing; below 0 = not known
  std::vector<MetricScore> metrics;
  std::vector<PartScore> groups;  ///< where there is more than one, by name
  std::vector<PartScore> cells;   ///< by axes ("length", "depth"), where questions have any
  int64_t items = 0;
  int64_t contexts_cut = 0;  ///< contexts that lost their first tokens: longer than the model's
  int64_t refused = 0;       ///< questions that could not be asked; no part of any mean
  std::vector<std::string> refusals;  ///< why, the first few
  int64_t asked = 0;                  ///< by this run, in `seconds`; the others were in the log
  double seconds = 0.0;
  std::optional<TaskPairs> pairs;  ///< where the caller has counted them

  const MetricScore& metric(const std::string& name) const;  ///< std::out_of_range
  /// Fills items, metrics, groups and cells.
  void add_items(const std::vector<ItemScore>& scores);
  nlohmann::ordered_json to_json() const;
};

}  // namespace fovea
