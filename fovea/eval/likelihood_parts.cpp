// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/likelihood_parts.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

LikelihoodParts::LikelihoodParts(const LikelihoodLimits& limits,
                                 std::span<const LikelihoodRequest> requests,
                                 LikelihoodEngine::Answered answered)
    : answered_(std::move(answered)), answers_(requests.size()), waiting_(requests.size(), 0) {
  jobs_ = likelihood_jobs(requests, limits.context, answers_);
  for (const LikelihoodJob& job : jobs_) ++waiting_[job.request];
  for (const LikelihoodCluster& cluster : likelihood_clusters(jobs_, limits)) {
    for (const LikelihoodBatch& batch : cluster.batches)
      parts_.push_back(
          {.jobs = std::span<const LikelihoodJob>(jobs_).subspan(batch.begin, batch.count),
           .prefix = cluster.prefix,
           .capacity = cluster.capacity});
  }
}

void LikelihoodParts::take(size_t n, std::span<const EndingScore> scores) {
  size_t next = 0;
  for (const LikelihoodJob& job : parts_[n].jobs) {
    LikelihoodAnswer& answer = answers_[job.request];
    for (size_t e = 0; e < job.endings.size(); ++e) {
      answer.endings[job.first_ending + e] = scores[next++];
      const double sum = answer.endings[job.first_ending + e].log_likelihood;
      require<NumericalError>(std::isfinite(sum), "eval",
                              "the log-likelihood of an ending is {}, no finite number: the "
                              "model's weights are damaged, or overflow in this number format",
                              sum);
    }
    if (--waiting_[job.request] == 0 && answered_) answered_(job.request, answer);
  }
}

Json to_json(const LikelihoodPart& part) {
  const auto list = [](std::span<const int32_t> tokens) {
    return Json(Tokens(tokens.begin(), tokens.end()));
  };
  Json jobs = Json::array();
  for (const LikelihoodJob& job : part.jobs) {
    Json endings = Json::array();
    for (const Tokens& ending : job.endings) endings.push_back(list(ending));
    jobs.push_back(
        {{"context", list(job.context.subspan(part.prefix))}, {"endings", std::move(endings)}});
  }
  return {{"prefix", list(part.jobs.front().context.first(part.prefix))},
          {"capacity", part.capacity},
          {"jobs", std::move(jobs)}};
}

ReceivedPart::ReceivedPart(const Json& json) {
  const auto prefix = json.at("prefix").get<Tokens>();
  for (const Json& job : json.at("jobs")) {
    LikelihoodRequest& request = requests_.emplace_back();
    request.context = prefix;
    const auto rest = job.at("context").get<Tokens>();
    request.context.insert(request.context.end(), rest.begin(), rest.end());
    request.endings = job.at("endings").get<std::vector<Tokens>>();
  }
  for (size_t r = 0; r < requests_.size(); ++r)
    jobs_.push_back({.request = r,
                     .first_ending = 0,
                     .context = requests_[r].context,
                     .endings = requests_[r].endings});
  part_ = {.jobs = jobs_, .prefix = prefix.size(), .capacity = json.at("capacity").get<int64_t>()};
}

// A sum that is no number is null in JSON.
Json scores_to_json(std::span<const EndingScore> scores) {
  Json list = Json::array();
  for (const EndingScore& score : scores)
    list.push_back({score.log_likelihood, score.tokens, score.greedy_tokens});
  return list;
}

std::vector<EndingScore> scores_from_json(const Json& json) {
  std::vector<EndingScore> scores;
  for (const Json& one : json)
    scores.push_back({.log_likelihood = one.at(0).is_number()
                                            ? one.at(0).get<double>()
                                            : std::numeric_limits<double>::quiet_NaN(),
                      .tokens = one.at(1).get<int64_t>(),
                      .greedy_tokens = one.at(2).get<int64_t>()});
  return scores;
}

}  // namespace fovea
