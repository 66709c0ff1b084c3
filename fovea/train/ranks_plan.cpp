// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/ranks_plan.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/train/gradient_buckets.h"
#include "fovea/train/optimizer.h"

namespace fovea {
namespace {

// loopback: Gloo, two processes of one machine (Zen 3): 4 KB in 1.0 ms, 4 MB in 3.8, 67 MB in 45.
// The others are the nominal rates of the hardware, with a latency of its order.
constexpr LinkSpeed kLinks[] = {
    {"loopback", 1.5e9, 5e-4, "measured: Gloo, processes of one machine"},
    {"ethernet-10g", 1.25e9, 5e-5, "nominal"},
    {"ethernet-100g", 12.5e9, 2e-5, "nominal"},
    {"infiniband-400g", 50e9, 5e-6, "nominal"},
    {"nvlink", 450e9, 3e-6, "nominal: one direction of NVLink 4"},
};

// A step's small sums beside one a micro-batch: loss, finiteness, seconds, stop.
constexpr int64_t kSmallSums = 4;
constexpr double kBackwardShare = 2.0 / 3.0;  // of a forward and a backward pass

struct Exchange {
  int64_t ranks;
  LinkSpeed link;

  double sum(double bytes) const {
    const auto n = static_cast<double>(ranks);
    return 2.0 * (n - 1.0) * (link.latency + bytes / (n * link.bytes_per_second));
  }
  double broadcast(double bytes) const {
    const auto hops = static_cast<double>(std::bit_width(static_cast<uint64_t>(ranks - 1)));
    return hops * (link.latency + bytes / link.bytes_per_second);
  }
  /// As many as full buckets and a rest.
  template <class Cost>
  static double in_buckets(double bytes, const Cost& cost) {
    const auto bucket = static_cast<double>(kGradientBucketBytes);
    const double full = std::floor(bytes / bucket), rest = bytes - full * bucket;
    return full * cost(bucket) + (rest > 0.0 ? cost(rest) : 0.0);
  }
};

int64_t rows_of_rank(int64_t rows, int64_t ranks) { return (rows + ranks - 1) / ranks; }

/// The recipe of the rank that has most rows.
Recipe recipe_of_rank(const Recipe& recipe, int64_t ranks) {
  Recipe part = recipe;
  const auto cut = [&](int64_t& rows) {
    require<ConfigError>(rows == 0 || rows >= ranks, "plan",
                         "expected a row of a micro-batch for each rank; got {} rows and {} ranks: "
                         "raise 'train.batch_rows'",
                         rows, ranks);
    rows = rows_of_rank(rows, ranks);
  };
  cut(part.train.batch_rows);
  for (StageConfig& stage : part.train.stages) cut(stage.batch_rows);
  return part;
}

MemoryPlan memory_of_rank(const RunPlan& part, int64_t ranks) {
  MemoryPlan memory = part.memory;
  if (ranks == 1) return memory;
  // The bucket that is sent, and its copy as one vector.
  memory.transient += 2 * kGradientBucketBytes;
  if (part.parameters.trainable < AdamW::kFewestToShard) return memory;
  const int64_t moments = memory.optimizer;
  memory.optimizer = (moments + ranks - 1) / ranks;
  // A checkpoint: all moments beside the own part, without gradients and activations.
  const int64_t saving = memory.program + memory.weights + memory.optimizer + moments;
  memory.transient += std::max<int64_t>(saving - memory.total(), 0);
  return memory;
}

}  // namespace

std::span<const LinkSpeed> known_links() { return kLinks; }

LinkSpeed find_link(const std::string& text) {
  std::vector<std::string> names;
  for (const LinkSpeed& link : kLinks) {
    if (link.name == text) return link;
    names.emplace_back(link.name);
  }
  double gigabytes = 0.0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, gigabytes);
  require<UsageError>(
      error == std::errc() && stop == end && gigabytes > 0.0 && std::isfinite(gigabytes), "--link",
      "expected gigabytes a second, or one of {}; got '{}'{}", fmt::join(names, ", "), text,
      did_you_mean(text, names));
  return {.name = "",
          .bytes_per_second = 1e9 * gigabytes,
          .latency = kLinks[0].latency,
          .source = "stated"};
}

RanksPlan plan_on_ranks(const Recipe& recipe, int64_t tokenizer_vocab, int64_t ranks, double speed,
                        const LinkSpeed& link) {
  const Recipe part = recipe_of_rank(recipe.resolved(), ranks);
  const RunPlan of_rank = plan_run(part, tokenizer_vocab);
  RanksPlan plan{
      .ranks = ranks, .rows = part.train.batch_rows, .memory = memory_of_rank(of_rank, ranks)};
  plan.step_tokens = plan_run(recipe, tokenizer_vocab).step_tokens;
  plan.compute_seconds =
      of_rank.training_per_token * static_cast<double>(of_rank.step_tokens) / speed;
  if (ranks == 1) return plan;
  const Exchange exchange{ranks, link};
  const auto bytes = 4.0 * static_cast<double>(of_rank.parameters.trainable);
  const auto sum = [&](double b) { return exchange.sum(b); };
  plan.gradient_seconds = Exchange::in_buckets(bytes, sum);
  const auto micro_batches = static_cast<double>(part.train.accumulation);
  const double backward = kBackwardShare * plan.compute_seconds / micro_batches;
  const double last = sum(std::min(bytes, static_cast<double>(kGradientBucketBytes)));
  plan.exposed_seconds = std::max(plan.gradient_seconds - backward, last);
  const auto n = static_cast<double>(ranks);
  if (of_rank.parameters.trainable >= AdamW::kFewestToShard)
    plan.weight_seconds =
        n * Exchange::in_buckets(bytes / n, [&](double b) { return exchange.broadcast(b); });
  plan.small_seconds =
      static_cast<double>(kSmallSums + part.train.accumulation) * exchange.sum(sizeof(double));
  return plan;
}

std::optional<int64_t> fewest_ranks(const Recipe& unresolved, int64_t tokenizer_vocab,
                                    double memory) {
  const Recipe recipe = unresolved.resolved();
  int64_t most = recipe.train.batch_rows;
  for (const StageConfig& stage : recipe.train.stages)
    if (stage.batch_rows > 0) most = std::min(most, stage.batch_rows);
  const auto fits = [&](int64_t ranks) {
    const RunPlan part = plan_run(recipe_of_rank(recipe, ranks), tokenizer_vocab);
    return static_cast<double>(memory_of_rank(part, ranks).total()) <= memory;
  };
  // Memory falls with the ranks, but for the buckets of the second one.
  if (fits(1)) return 1;
  if (!fits(most)) return std::nullopt;
  int64_t low = 1, high = most;  // low does not fit, high does
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

nlohmann::ordered_json RanksPlan::to_json() const {
  return {{"ranks", ranks},
          {"rows_of_a_rank", rows},
          {"memory_bytes", memory.total()},
          {"optimizer_bytes", memory.optimizer},
          {"compute_seconds", compute_seconds},
          {"gradient_seconds", gradient_seconds},
          {"exposed_seconds", exposed_seconds},
          {"weight_seconds", weight_seconds},
          {"small_seconds", small_seconds},
          {"step_seconds", step_seconds()},
          {"tokens_per_second", tokens_per_second()},
          {"efficiency", efficiency()}};
}

}  // namespace fovea
