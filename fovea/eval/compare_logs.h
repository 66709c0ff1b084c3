// Compares two models on the questions that both have answered, paired, from their logs (spec 9.1).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fovea/eval/item_log.h"
#include "fovea/report/statistics.h"

namespace fovea {

/// Whether a metric lies in 0 ... 1, as an accuracy.
bool is_share(const std::string& metric);

struct LogComparison {
  std::string task;
  std::string metric;         ///< of each question; "nll" (nats) where the headline has none
  PairedComparison pairs;     ///< first - second
  double corrected_p = 1.0;   ///< Holm's, over the tasks compared together
  int64_t only_in_first = 0;  ///< questions that the other log lacks
  int64_t only_in_second = 0;

  nlohmann::ordered_json to_json() const;
};

/// Questions are paired by fingerprint: the prompt with its choices as the model read it. Those
/// that one of the models could not be asked are left out. InputError where no question is in both.
LogComparison compare_logs(const ItemLog& first, const ItemLog& second, const std::string& task,
                           const std::string& headline);

/// The average over tasks, each with the same weight. Empty below two tasks, and where one has a
/// metric that is no share.
struct TaskMean {
  int64_t tasks = 0;
  double first = 0, second = 0;
  PairedTest test;  ///< first - second, over the questions of all tasks

  nlohmann::ordered_json to_json() const;
};
std::optional<TaskMean> mean_over_tasks(std::span<const LogComparison> comparisons);

/// Fills `corrected_p`.
void correct_by_holm(std::span<LogComparison> comparisons);

}  // namespace fovea
