// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_ranks.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "fovea/base/error.h"
#include "fovea/report/format.h"
#include "fovea/report/table.h"

namespace fovea::cli {
namespace {

constexpr int64_t kMostRanks = 100'000;

/// "24G", "512M", "1.5T": powers of 1000, as all sizes that are printed.
double bytes_given(const std::string& text) {
  double number = 0.0, unit = 1.0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  std::string_view rest(stop, static_cast<size_t>(end - stop));
  if (rest.ends_with('B')) rest.remove_suffix(1);
  bool known = error == std::errc();
  if (rest == "K" || rest == "k") {
    unit = 1e3;
  } else if (rest == "M") {
    unit = 1e6;
  } else if (rest == "G") {
    unit = 1e9;
  } else if (rest == "T") {
    unit = 1e12;
  } else {
    known = known && rest.empty();
  }
  require<UsageError>(known && number > 0.0 && std::isfinite(number), "--memory",
                      "expected bytes, as 24G or 512M; got '{}'", text);
  return number * unit;
}

std::string seconds_text(double seconds) {
  return seconds < 1.0 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.3g} s", seconds);
}

}  // namespace

void add_plan_ranks_options(Command& verb, PlanRanksOptions& options) {
  verb.add_option("--ranks", options.ranks,
                  "also the memory and the speed of a rank where so many train together")
      ->check(in_range({1, kMostRanks}));
  verb.add_option("--memory", options.memory,
                  "of a rank, as 24G: whether the run fits, and the fewest ranks that do");
  std::string links;
  for (const LinkSpeed& link : known_links())
    links += fmt::format("{}{}", links.empty() ? "" : ", ", link.name);
  verb.add_option("--link", options.link,
                  "connection of a rank: " + links + ", or gigabytes a second")
      ->capture_default_str();
}

RanksAnswer plan_ranks(const PlanRanksOptions& options, const Recipe& recipe, int64_t vocabulary,
                       double speed) {
  RanksAnswer answer;
  answer.link = find_link(options.link);
  answer.sharded = recipe.train.shard == Shard::all;
  if (!options.memory.empty()) {
    answer.memory = bytes_given(options.memory);
    answer.fewest = fewest_ranks(recipe, vocabulary, answer.memory);
  }
  const int64_t ranks = options.ranks > 0 ? options.ranks : answer.fewest.value_or(1);
  answer.one = plan_on_ranks(recipe, vocabulary, 1, speed, answer.link);
  answer.plan = plan_on_ranks(recipe, vocabulary, ranks, speed, answer.link);
  return answer;
}

nlohmann::ordered_json RanksAnswer::to_json() const {
  nlohmann::ordered_json json = plan.to_json();
  json["speedup"] = plan.tokens_per_second() / one.tokens_per_second();
  json["link"] = {{"bytes_per_second", link.bytes_per_second},
                  {"latency_seconds", link.latency},
                  {"source", link.source}};
  if (memory > 0.0) {
    json["memory"] = {{"bytes_given", memory},
                      {"fits", static_cast<double>(plan.memory.total()) <= memory},
                      {"fewest_ranks", nullptr}};
    if (fewest) json["memory"]["fewest_ranks"] = *fewest;
  }
  return json;
}

std::string RanksAnswer::fit_text() const {
  if (fewest) return fmt::format("fewest ranks of {}: {}", bytes_text(memory), *fewest);
  const auto whole = static_cast<double>(plan.memory.weights + plan.memory.gradients);
  return sharded ? fmt::format(
                       "no number of ranks fits {}: embedding, head and two layers are "
                       "whole on every rank",
                       bytes_text(memory))
                 : fmt::format(
                       "no number of ranks fits {}: weights and gradients are whole on every "
                       "rank, {}; 'train.shard=all' cuts those of layers",
                       bytes_text(memory), bytes_text(whole));
}

void RanksAnswer::print_table(int64_t width) const {
  TextTable table({{.title = fmt::format("{} rank{}", plan.ranks, plan.ranks == 1 ? "" : "s")},
                   {.title = "", .right = true}});
  const auto bytes = static_cast<double>(plan.memory.total());
  table.add_row({"rows of a micro-batch, a rank", std::to_string(plan.rows)});
  table.add_row({"memory of a rank, at its peak", bytes_text(bytes)});
  if (memory > 0.0)
    table.add_row({fmt::format("fits {}", bytes_text(memory)), bytes <= memory ? "yes" : "no"});
  table.add_rule();
  table.add_row({"computation of a step", seconds_text(plan.compute_seconds)});
  table.add_row({"sums of gradients",
                 fmt::format("{}, hidden all but {}", seconds_text(plan.gradient_seconds),
                             seconds_text(plan.exposed_seconds))});
  table.add_row({"exchange of weights", seconds_text(plan.weight_seconds)});
  table.add_row({"small sums", seconds_text(plan.small_seconds)});
  table.add_row({"a step", seconds_text(plan.step_seconds())});
  table.add_row({"tokens a second, at most", count_text(plan.tokens_per_second())});
  table.add_row({"times as fast as one rank",
                 fmt::format("{:.3g}", plan.tokens_per_second() / one.tokens_per_second())});
  table.add_note(fmt::format("connection of a rank: {} a second, {} a message ({})",
                             bytes_text(link.bytes_per_second), seconds_text(link.latency),
                             link.source));
  table.add_note("each rank computes as fast as stated or measured above");
  if (memory > 0.0) table.add_note(fit_text());
  print("\n" + table.render(width));
}

}  // namespace fovea::cli
