// Compares two models on the questions that both have answered, paired, from their logs (spec 9.1).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "fovea/eval/item_log.h"
#include "fovea/report/statistics.h"

namespace fovea {

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

/// Fills `corrected_p`.
void correct_by_holm(std::span<LogComparison> comparisons);

}  // namespace fovea
