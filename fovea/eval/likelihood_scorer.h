// Computes one part of a list of log-likelihoods: a batch of contexts with their endings. Private
// to fovea/eval.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/eval/likelihood_parts.h"
#include "fovea/nn/transformer.h"

namespace fovea {

/// The scores of a part depend on the part, the model and the number of threads alone: they are the
/// same in every process, to the bit. Holds a reference to the model; one thread.
class LikelihoodScorer {
 public:
  /// `shared`: contexts are read once for all their endings (LikelihoodEngine::why_not_shared()).
  LikelihoodScorer(const Transformer& model, int64_t tokens_a_pass, bool shared)
      : model_(model), tokens_a_pass_(tokens_a_pass), shared_(shared) {}

  /// The scores of all endings of all jobs, in their order. The beginning that the jobs share is
  /// kept for the next part that has the same.
  std::vector<EndingScore> score(const LikelihoodPart& part);

 private:
  void forget();
  void read_prefix(std::span<const int32_t> prefix, int64_t capacity);

  const Transformer& model_;
  const int64_t tokens_a_pass_;
  const bool shared_;
  Tokens prefix_;
  int64_t capacity_ = 0;
  DecodeState prefix_state_;  // of `prefix_`
};

}  // namespace fovea
