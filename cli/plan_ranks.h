// fovea plan --ranks, --memory: the fit and the speed of a recipe on several ranks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cli/verbs.h"
#include "fovea/train/ranks_plan.h"

namespace fovea::cli {

struct PlanRanksOptions {
  int64_t ranks = 0;  ///< 0 = not asked
  std::string memory, link = "loopback";

  bool asked() const { return ranks > 0 || !memory.empty(); }
};

void add_plan_ranks_options(Command& verb, PlanRanksOptions& options);

/// The plan of the ranks that are asked for; with --memory alone, of the fewest that fit.
struct RanksAnswer {
  RanksPlan one, plan;
  LinkSpeed link;
  double memory = 0.0;            ///< bytes of a rank that may be used; 0 = not said
  std::optional<int64_t> fewest;  ///< that fit it; none: no number does

  bool sharded = false;  ///< train.shard: all

  nlohmann::ordered_json to_json() const;
  std::string fit_text() const;
  void print_table(int64_t width) const;
};

/// `speed`: operations a second of one rank. UsageError, ConfigError.
RanksAnswer plan_ranks(const PlanRanksOptions& options, const Recipe& recipe, int64_t vocabulary,
                       double speed);

}  // namespace fovea::cli
