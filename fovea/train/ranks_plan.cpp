// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/ranks_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/runtime/ring_gather.h"
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
constexpr double kForwardShare = 1.0 / 4.0;   // where the forward pass is repeated

struct Exchange {
  int64_t ranks;
  LinkSpeed link;

  double gather(double bytes) const {
    const auto n = static_cast<double>(ranks);
    return (n - 1.0) * (link.latency + bytes / (n * link.bytes_per_second));
  }
  double sum(double bytes) const { return 2.0 * gather(bytes); }
  double bucket() const { return static_cast<double>(ring_bytes(ranks)); }
  /// As many as full buckets and a rest.
  template <class Cost>
  double in_buckets(double bytes, const Cost& cost) const {
    const double full = std::floor(bytes / bucket()), rest = bytes - full * bucket();
    return full * cost(bucket()) + (rest > 0.0 ? cost(rest) : 0.0);
  }
  double gather_all(double bytes) const {
    return in_buckets(bytes, [&](double b) { return gather(b); });
  }
  double sum_all(double bytes) const {
    return in_buckets(bytes, [&](double b) { return sum(b); });
  }
};

/// Numbers that sharded layers cut, and those that stay whole.
struct CutNumbers {
  double layers = 1.0;           // of the model
  double cut = 0.0, rest = 0.0;  // weights
  double cut_learning = 0.0, rest_learning = 0.0;

  CutNumbers(const Recipe& recipe, const RunPlan& plan)
      : layers(static_cast<double>(plan.model.layers)),
        rest(static_cast<double>(plan.parameters.total())),
        rest_learning(static_cast<double>(plan.parameters.trainable)) {
    if (recipe.train.shard != Shard::all) return;
    const ParameterParts& parts = plan.parameters;
    cut = static_cast<double>(parts.attention + parts.feed_forward + parts.norms);
    rest -= cut;
    // Over a frozen base only the rest learns.
    cut_learning = rest_learning > rest ? std::min(cut, rest_learning) : 0.0;
    rest_learning -= cut_learning;
  }
  bool cuts() const { return cut > 0.0; }
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

MemoryPlan memory_of_rank(const Recipe& recipe, const RunPlan& part, int64_t ranks) {
  MemoryPlan memory = part.memory;
  if (ranks == 1) return memory;
  const auto n = static_cast<double>(ranks);
  const CutNumbers numbers(recipe, part);
  // The bucket that is sent, and its copy as one vector.
  memory.transient += 2 * std::min(ring_bytes(ranks), 4 * part.parameters.trainable);
  if (numbers.cuts() || part.parameters.trainable >= AdamW::kFewestToShard)
    memory.optimizer = (memory.optimizer + ranks - 1) / ranks;
  if (!numbers.cuts()) return memory;
  // Two layers are whole at a time: weights, gradients, and the vector that sums these.
  const double layer = numbers.cut / numbers.layers, learns = numbers.cut_learning / numbers.layers;
  const auto copies =
      static_cast<double>(memory.weights - 4 * part.parameters.total()) / numbers.layers;
  memory.weights =
      static_cast<int64_t>(4.0 * (numbers.rest + numbers.cut / n + 2.0 * layer) + copies);
  memory.gradients =
      static_cast<int64_t>(4.0 * (numbers.rest_learning + numbers.cut_learning / n + 2.0 * learns));
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
  RanksPlan plan{.ranks = ranks,
                 .rows = part.train.batch_rows,
                 .memory = memory_of_rank(part, of_rank, ranks)};
  plan.step_tokens = plan_run(recipe, tokenizer_vocab).step_tokens;
  plan.compute_seconds =
      of_rank.training_per_token * static_cast<double>(of_rank.step_tokens) / speed;
  if (ranks == 1) return plan;
  const Exchange exchange{ranks, link};
  const CutNumbers numbers(part, of_rank);
  const auto micro_batches = static_cast<double>(part.train.accumulation);
  const double rest = 4.0 * numbers.rest_learning, sum_of_rest = exchange.sum_all(rest);
  const double pass = plan.compute_seconds / micro_batches;
  if (numbers.cuts()) {
    const double layer = exchange.gather(4.0 * numbers.cut / numbers.layers);
    const double layer_sum = numbers.cut_learning > 0.0 ? 2.0 * layer : 0.0;
    plan.gradient_seconds = micro_batches * numbers.layers * layer_sum + sum_of_rest;
    // The first layer of a pass, and the sum of the last one, have nothing beside them.
    const double forward = std::max(layer, numbers.layers * layer - kForwardShare * pass);
    const double backward =
        std::max(layer_sum, numbers.layers * (layer + layer_sum) - (1.0 - kForwardShare) * pass);
    plan.weight_seconds = micro_batches * forward + exchange.gather_all(rest);
    plan.exposed_seconds = micro_batches * backward + sum_of_rest;
  } else {
    plan.gradient_seconds = sum_of_rest;
    const double last = exchange.sum(std::min(rest, exchange.bucket()));
    plan.exposed_seconds = std::max(sum_of_rest - kBackwardShare * pass, last);
    if (of_rank.parameters.trainable >= AdamW::kFewestToShard)
      plan.weight_seconds = exchange.gather_all(rest);
  }
  plan.small_seconds =
      static_cast<double>(kSmallSums + part.train.accumulation) * exchange.sum(sizeof(double));
  return plan;
}

MemoryPlan plan_rank_memory(const Recipe& unresolved, int64_t tokenizer_vocab, int64_t ranks) {
  Recipe recipe = unresolved.resolved();
  if (recipe.train.batch_rows >= ranks) recipe = recipe_of_rank(recipe, ranks);
  return memory_of_rank(recipe, plan_run(recipe, tokenizer_vocab), ranks);
}

std::optional<int64_t> fewest_ranks(const Recipe& unresolved, int64_t tokenizer_vocab,
                                    double memory) {
  const Recipe recipe = unresolved.resolved();
  int64_t most = recipe.train.batch_rows;
  for (const StageConfig& stage : recipe.train.stages)
    if (stage.batch_rows > 0) most = std::min(most, stage.batch_rows);
  const auto fits = [&](int64_t ranks) {
    const Recipe of_rank = recipe_of_rank(recipe, ranks);
    const RunPlan part = plan_run(of_rank, tokenizer_vocab);
    return static_cast<double>(memory_of_rank(of_rank, part, ranks).total()) <= memory;
  };
  // Memory falls with the ranks, but for buckets, which grow: the first power of two that fits.
  int64_t low = 0, high = 1;  // low does not fit
  for (; !fits(high); high = std::min(2 * high, most)) {
    if (high == most) return std::nullopt;
    low = high;
  }
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
