// The predicted memory and speed of training on several ranks (docs/scaling-out.md).
//
// A step on N ranks takes
//
//   rows of a rank / speed of a rank          the slowest rank has ceil(rows / N) rows
//   + max(last bucket, sum - backward)        gradients are summed while the last backward pass
//   runs
//   + weights                                 each rank sends its part of the new ones (ZeRO-1)
//   + small sums                              normaliser, loss, decisions
//
// with a sum of b bytes in 2 (N - 1) (latency + b / (N bandwidth)) and a gathering of b bytes in
// half of that: rings.
//
// Sharded layers (ZeRO-3) are gathered for each forward and each backward pass of a micro-batch,
// and their gradients summed after it, while neighbouring layers compute. The rest is as above, but
// summed after the backward pass.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fovea/train/run_plan.h"

namespace fovea {

/// The connection of a rank: what one message costs.
struct LinkSpeed {
  std::string_view name;
  double bytes_per_second = 0.0;
  double latency = 0.0;  ///< seconds of a message
  std::string_view source;
};
/// Connections known by name; the first is that of processes of one machine.
std::span<const LinkSpeed> known_links();
/// A known name, or gigabytes a second with the latency of the first. UsageError.
LinkSpeed find_link(const std::string& text);

struct RanksPlan {
  int64_t ranks = 1;
  int64_t rows = 0;   ///< of a micro-batch, on the rank that has most
  MemoryPlan memory;  ///< of that rank
  double compute_seconds = 0.0;
  double gradient_seconds = 0.0;  ///< of the sums
  double exposed_seconds = 0.0;   ///< the part of it that no backward pass hides
  double weight_seconds = 0.0;    ///< of the exchange of weights that nothing hides
  double small_seconds = 0.0;
  int64_t step_tokens = 0;

  double step_seconds() const {
    return compute_seconds + exposed_seconds + weight_seconds + small_seconds;
  }
  double tokens_per_second() const { return static_cast<double>(step_tokens) / step_seconds(); }
  /// The share of computation in the step.
  double efficiency() const { return compute_seconds / step_seconds(); }
  nlohmann::ordered_json to_json() const;
};

/// As plan_run(), on so many ranks, each of which computes `speed` operations a second. ConfigError
/// where a micro-batch has fewer rows than ranks.
RanksPlan plan_on_ranks(const Recipe& recipe, int64_t tokenizer_vocab, int64_t ranks, double speed,
                        const LinkSpeed& link);

/// The memory of the rank that has most rows, of which each rank has one or more.
MemoryPlan plan_rank_memory(const Recipe& recipe, int64_t tokenizer_vocab, int64_t ranks);

/// The smallest number of ranks, up to one a row, on which a rank needs at most `memory` bytes.
std::optional<int64_t> fewest_ranks(const Recipe& recipe, int64_t tokenizer_vocab, double memory);

}  // namespace fovea
