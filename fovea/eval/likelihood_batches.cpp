// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/likelihood_batches.h"

#include <algorithm>

#include "fovea/base/error.h"

namespace fovea {
namespace {

// A shared beginning is worth a pass of its own from so many tokens on: below, the pass costs more
// than the rows that it saves.
constexpr size_t kWorthSharing = 32;

size_t common_length(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

/// Batches of jobs [begin, end), which are sorted by length.
void cut_batches(std::span<const LikelihoodJob> jobs, size_t begin, size_t end,
                 const LikelihoodLimits& limits, LikelihoodCluster& cluster) {
  const auto prefix = static_cast<int64_t>(cluster.prefix);
  while (begin < end) {
    size_t count = 0;
    int64_t context = 0, ending = 0, rows = 0;
    for (; begin + count < end; ++count) {
      const LikelihoodJob& job = jobs[begin + count];
      const int64_t own = std::ssize(job.context) - prefix;
      const int64_t t = std::max(context, own), e = std::max(ending, job.longest_ending());
      const int64_t n =
          limits.shared ? static_cast<int64_t>(count) + 1 : rows + std::ssize(job.endings);
      const int64_t width = limits.shared ? t : t + e - 1;
      const bool unequal = count > 0 && own != context;
      const bool full = n * width > limits.tokens_a_pass ||
                        n * (prefix + t + e - 1) > kLikelihoodCachedPasses * limits.tokens_a_pass ||
                        prefix + t + e - 1 > limits.context || (unequal && !limits.fill_up);
      if (count > 0 && full) break;
      context = t;
      ending = e;
      rows = n;
    }
    cluster.batches.push_back({begin, count});
    begin += count;
  }
}

}  // namespace

int64_t LikelihoodJob::longest_ending() const {
  size_t longest = 0;
  for (const Tokens& ending : endings) longest = std::max(longest, ending.size());
  return static_cast<int64_t>(longest);
}

std::vector<LikelihoodJob> likelihood_jobs(std::span<const LikelihoodRequest> requests,
                                           int64_t context,
                                           std::vector<LikelihoodAnswer>& answers) {
  std::vector<LikelihoodJob> jobs;
  for (size_t r = 0; r < requests.size(); ++r) {
    const LikelihoodRequest& request = requests[r];
    LikelihoodAnswer& answer = answers[r];
    const std::span<const Tokens> endings(request.endings);
    int64_t longest = 0;
    for (const Tokens& ending : endings) {
      require<ShapeError>(!ending.empty() && std::ssize(ending) <= context, "eval",
                          "expected endings of 1 to {} tokens; got {}", context, ending.size());
      answer.endings.push_back({.tokens = std::ssize(ending)});
      longest = std::max(longest, std::ssize(ending));
    }
    require<ShapeError>(!request.context.empty(), "eval",
                        "expected a context of at least one token; got none");
    const std::span<const int32_t> whole(request.context);
    if (std::ssize(whole) + longest - 1 <= context) {
      if (!endings.empty()) jobs.push_back({r, 0, whole, endings});
      continue;
    }
    // Of each ending with its context the last context + 1 tokens count (9.1).
    for (size_t e = 0; e < endings.size(); ++e) {
      const int64_t room = context + 1 - std::ssize(endings[e]);
      const auto kept = static_cast<size_t>(std::min(std::ssize(whole), room));
      answer.context_cut = answer.context_cut || kept < whole.size();
      jobs.push_back({r, e, whole.last(kept), endings.subspan(e, 1)});
    }
  }
  return jobs;
}

std::vector<LikelihoodCluster> likelihood_clusters(std::vector<LikelihoodJob>& jobs,
                                                   const LikelihoodLimits& limits) {
  const auto by_tokens = [](const LikelihoodJob& a, const LikelihoodJob& b) {
    return std::ranges::lexicographical_compare(a.context, b.context);
  };
  // Rows of a pass are as long: contexts behind a shared beginning, else contexts with endings.
  const auto by_length = [&](const LikelihoodJob& a, const LikelihoodJob& b) {
    if (limits.shared && a.context.size() != b.context.size())
      return a.context.size() > b.context.size();
    return a.whole_length() > b.whole_length();
  };
  std::ranges::stable_sort(jobs, by_tokens);
  std::vector<LikelihoodJob> alone, sorted;
  std::vector<LikelihoodCluster> clusters;
  for (size_t begin = 0; begin < jobs.size();) {
    size_t prefix = jobs[begin].context.size() - 1, end = begin + 1;
    for (; limits.shared && end < jobs.size(); ++end) {
      const size_t common = std::min({prefix, common_length(jobs[begin].context, jobs[end].context),
                                      jobs[end].context.size() - 1});
      if (common < kWorthSharing || 2 * common < prefix) break;
      prefix = common;
    }
    if (end - begin == 1) {
      alone.push_back(jobs[begin]);
    } else {
      LikelihoodCluster cluster{.begin = sorted.size(), .prefix = prefix};
      sorted.insert(sorted.end(), jobs.begin() + static_cast<ptrdiff_t>(begin),
                    jobs.begin() + static_cast<ptrdiff_t>(end));
      clusters.push_back(std::move(cluster));
    }
    begin = end;
  }
  if (!alone.empty()) {
    clusters.push_back({.begin = sorted.size()});
    sorted.insert(sorted.end(), alone.begin(), alone.end());
  }
  for (size_t c = 0; c < clusters.size(); ++c) {
    const size_t begin = clusters[c].begin;
    const size_t end = c + 1 < clusters.size() ? clusters[c + 1].begin : sorted.size();
    std::stable_sort(sorted.begin() + static_cast<ptrdiff_t>(begin),
                     sorted.begin() + static_cast<ptrdiff_t>(end), by_length);
    cut_batches(sorted, begin, end, limits, clusters[c]);
    // Rows are filled up to the longest context and the longest ending of their batch.
    for (const LikelihoodBatch& batch : clusters[c].batches) {
      int64_t context = 0, ending = 0;
      for (size_t j = batch.begin; j < batch.begin + batch.count; ++j) {
        context = std::max(context, std::ssize(sorted[j].context));
        ending = std::max(ending, sorted[j].longest_ending());
      }
      clusters[c].capacity = std::max(clusters[c].capacity, context + ending - 1);
    }
  }
  jobs = std::move(sorted);
  return clusters;
}

}  // namespace fovea
