// A list of log-likelihoods in parts that are computed apart: here, or in other processes. Private
// to fovea/eval.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "fovea/eval/likelihood_batches.h"

namespace fovea {

/// Jobs that are computed together.
struct LikelihoodPart {
  std::span<const LikelihoodJob> jobs;
  size_t prefix = 0;     ///< tokens that all contexts begin with, read once; 0 = none
  int64_t capacity = 0;  ///< tokens of the cache that holds them
};

/// The parts of a list of requests, and the answers that become whole as parts are taken. Spans
/// into the requests, which must outlive it.
class LikelihoodParts {
 public:
  /// ShapeError as likelihood_jobs().
  LikelihoodParts(const LikelihoodLimits& limits, std::span<const LikelihoodRequest> requests,
                  LikelihoodEngine::Answered answered);

  size_t size() const { return parts_.size(); }
  const LikelihoodPart& part(size_t n) const { return parts_[n]; }
  /// Takes the scores of part n, in any order of parts, and hands on the answers that are whole.
  /// NumericalError for log-likelihoods that are no numbers.
  void take(size_t n, std::span<const EndingScore> scores);
  const std::vector<LikelihoodAnswer>& answers() const { return answers_; }

 private:
  LikelihoodEngine::Answered answered_;
  std::vector<LikelihoodAnswer> answers_;  // by request, as the next
  std::vector<size_t> waiting_;            // jobs that are not scored
  std::vector<LikelihoodJob> jobs_;
  std::vector<LikelihoodPart> parts_;
};

/// A part as JSON, and back: in another process.
nlohmann::ordered_json to_json(const LikelihoodPart& part);
class ReceivedPart {
 public:
  explicit ReceivedPart(const nlohmann::ordered_json& json);
  ReceivedPart(const ReceivedPart&) = delete;
  ReceivedPart& operator=(const ReceivedPart&) = delete;
  const LikelihoodPart& part() const { return part_; }

 private:
  std::vector<LikelihoodRequest> requests_;
  std::vector<LikelihoodJob> jobs_;
  LikelihoodPart part_;
};

nlohmann::ordered_json scores_to_json(std::span<const EndingScore> scores);
std::vector<EndingScore> scores_from_json(const nlohmann::ordered_json& json);

}  // namespace fovea
