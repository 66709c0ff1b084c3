// Groups requests of log-likelihood that are computed together: clusters that share the beginning
// of their contexts, batches of similar length. Private to fovea/eval.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/eval/loglikelihood.h"

namespace fovea {

/// Endings of a request that follow one context: all of them, or one whose context is cut.
struct LikelihoodJob {
  size_t request = 0, first_ending = 0;
  std::span<const int32_t> context;
  std::span<const Tokens> endings;

  int64_t longest_ending() const;
  /// Inputs of the context with its longest ending.
  int64_t whole_length() const { return std::ssize(context) + longest_ending() - 1; }
};

/// Jobs of all requests; prepares `answers` (token counts, context_cut). ShapeError for an ending
/// that LikelihoodEngine::why_not() refuses.
std::vector<LikelihoodJob> likelihood_jobs(std::span<const LikelihoodRequest> requests,
                                           int64_t context, std::vector<LikelihoodAnswer>& answers);

/// Rows of the cache that a batch may hold, copies of a context included, in passes.
inline constexpr int64_t kLikelihoodCachedPasses = 3;

struct LikelihoodLimits {
  int64_t context = 0;        ///< inputs of a row
  int64_t tokens_a_pass = 0;  ///< inputs of a pass
  bool fill_up = true;        ///< rows of unequal length may stand in one batch
  bool shared = true;         ///< a context is read once for its endings
};

struct LikelihoodBatch {
  size_t begin = 0, count = 0;  ///< of the sorted jobs
};

struct LikelihoodCluster {
  size_t begin = 0;      ///< of the sorted jobs
  size_t prefix = 0;     ///< tokens that all its contexts begin with, read once; 0 = none
  int64_t capacity = 0;  ///< tokens of its longest row
  std::vector<LikelihoodBatch> batches;
};

/// Sorts the jobs and cuts them into clusters and batches. At least one token of every context is
/// left to its own row.
std::vector<LikelihoodCluster> likelihood_clusters(std::vector<LikelihoodJob>& jobs,
                                                   const LikelihoodLimits& limits);

}  // namespace fovea
