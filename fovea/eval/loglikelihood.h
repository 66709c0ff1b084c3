// Log-likelihood of endings after a context, as lm-evaluation-harness asks for it (spec 9.1).
//
// A context is read once, whatever the number of its endings: it goes into a cache, and the endings
// follow as rows that copy it. Contexts that begin alike (shots) share their beginning in the same
// way. The head runs only on states that predict a token of an ending.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/nn/transformer.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

using Tokens = std::vector<int32_t>;

/// A context and an ending as tokens.
struct EncodedPair {
  Tokens context, ending;
};

/// The rule of 9.1: white space at the end of the context moves to the ending; the ending's tokens
/// are those of both together beyond the context's own. The tokenizer's begin mark comes first,
/// where it has one; an empty context is the begin mark, else the end mark. InputError where the
/// tokenizer has neither and the context is empty.
EncodedPair encode_pair(const Tokenizer& tokenizer, std::string_view context,
                        std::string_view ending);

/// One context with all its endings; none of these is empty.
struct LikelihoodRequest {
  Tokens context;
  std::vector<Tokens> endings;
};

struct EndingScore {
  double log_likelihood = 0.0;  ///< nats, summed over the ending's tokens
  int64_t tokens = 0;
  int64_t greedy_tokens = 0;  ///< those that are the most likely one, given those before
  bool greedy() const { return greedy_tokens == tokens; }
};

struct LikelihoodAnswer {
  std::vector<EndingScore> endings;
  bool context_cut = false;  ///< its first tokens did not fit
};

struct LikelihoodOptions {
  int64_t context = 0;           ///< inputs at most; 0 = the model's trained context
  int64_t tokens_a_pass = 2048;  ///< inputs computed together, filling included
};

struct LikelihoodLimits;

/// Scores requests in passes of similar length. Holds a reference to the model; one thread.
class LikelihoodEngine {
 public:
  explicit LikelihoodEngine(const Transformer& model, const LikelihoodOptions& options = {});

  /// Why an ending cannot be scored whole: longer than the context. Empty where it can.
  std::string why_not(const LikelihoodRequest& request) const;
  /// Receives each answer as soon as it is whole; it may throw.
  using Answered = std::function<void(size_t request, const LikelihoodAnswer& answer)>;
  /// Answers in the order of the requests. Where context and ending together exceed the model's
  /// context, the last context + 1 tokens count. ShapeError where an ending has no tokens or
  /// why_not() refuses one, NumericalError for log-likelihoods that are no numbers.
  std::vector<LikelihoodAnswer> score(std::span<const LikelihoodRequest> requests,
                                      const Answered& answered = {}) const;

  int64_t context() const { return context_; }
  int64_t tokens_a_pass() const { return tokens_a_pass_; }
  LikelihoodLimits limits() const;
  /// Why contexts are read once for every ending; empty where they are shared.
  const std::string& why_not_shared() const { return why_not_shared_; }

 private:
  const Transformer& model_;
  int64_t context_, tokens_a_pass_;
  bool keeps_all_rows_;  // the cache may forget what filled a row up
  std::string why_not_shared_;
};

}  // namespace fovea
