// Numbers of an engine at work, for metrics.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fovea/engine/request.h"

namespace fovea {

/// Counts of seconds by upper bounds: counts[i] has values <= bounds[i] that exceed bounds[i - 1],
/// and the last one those above all bounds.
struct SecondsHistogram {
  static constexpr std::array<double, 18> kBounds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                  0.075, 0.1,    0.25,  0.5,  0.75,  1.0,
                                                  2.5,   5.0,    7.5,   10.0, 30.0,  120.0};
  std::array<int64_t, kBounds.size() + 1> counts{};
  int64_t count = 0;
  double sum = 0;

  void add(double seconds);
};

/// Since the engine began, unless a line says "now".
struct EngineStatistics {
  int64_t waiting = 0;                        ///< requests in the queue, now
  int64_t running = 0;                        ///< requests that are read or written, now
  int64_t sequences = 0, most_sequences = 0;  ///< texts at work: now, and at most

  int64_t accepted = 0, refused = 0;         ///< requests; refused: the queue was full
  std::map<RequestOutcome, int64_t> ended;   ///< requests by outcome
  std::map<FinishReason, int64_t> finished;  ///< choices by reason

  int64_t prompt_tokens = 0;  ///< of prompts that were read
  int64_t cached_tokens = 0;  ///< of these, taken from the prefix cache
  int64_t tokens = 0;         ///< new ones

  int64_t prefix_queries = 0, prefix_hits = 0;   ///< prompts looked up; those that began in it
  int64_t prefix_bytes = 0, prefix_evicted = 0;  ///< now; parts that made room
  int64_t cache_bytes = 0, cache_limit = 0;      ///< reserved by texts at work and prefixes, now

  int64_t steps = 0;   ///< of one token for all texts that are written
  int64_t chunks = 0;  ///< of prompts
  double step_seconds = 0, chunk_seconds = 0;

  SecondsHistogram queue;           ///< submit() to the first part of the prompt
  SecondsHistogram first_token;     ///< submit() to the first new token
  SecondsHistogram between_tokens;  ///< of a choice
  SecondsHistogram whole;           ///< submit() to the end
};

}  // namespace fovea
