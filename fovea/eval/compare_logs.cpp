// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/compare_logs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "fovea/base/error.h"

namespace fovea {
namespace {

std::optional<double> value_of(const ItemRecord& record, const std::string& metric) {
  for (const auto& [name, value] : record.score.values) {
    if (name == metric) return value;
  }
  return std::nullopt;
}

/// By fingerprint; the same question twice is the same score twice, so either will do.
std::map<std::string, double> scores_of(const ItemLog& log, const std::string& metric) {
  std::map<std::string, double> scores;
  for (const ItemRecord& record : log.records) {
    const std::optional<double> value = value_of(record, metric);
    if (record.refused.empty() && value) scores.emplace(record.question, *value);
  }
  return scores;
}

nlohmann::ordered_json finite_number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

}  // namespace

LogComparison compare_logs(const ItemLog& first, const ItemLog& second, const std::string& task,
                           const std::string& headline) {
  const bool has_headline = std::ranges::any_of(
      first.records, [&](const ItemRecord& r) { return value_of(r, headline).has_value(); });
  LogComparison out{.task = task, .metric = has_headline ? headline : "nll"};
  const auto ours = scores_of(first, out.metric), theirs = scores_of(second, out.metric);
  std::vector<double> a, b;
  for (const auto& [question, score] : ours) {
    const auto other = theirs.find(question);
    if (other == theirs.end()) continue;
    a.push_back(score);
    b.push_back(other->second);
  }
  require<InputError>(!a.empty(), task,
                      "expected questions that both models have answered; the two logs have none "
                      "in common: ask both the same data with the same shots and seed");
  out.only_in_first = std::ssize(ours) - std::ssize(a);
  out.only_in_second = std::ssize(theirs) - std::ssize(a);
  out.pairs = paired_comparison(a, b);
  out.corrected_p = out.pairs.p();
  return out;
}

void correct_by_holm(std::span<LogComparison> comparisons) {
  std::vector<double> p;
  for (const LogComparison& c : comparisons)
    p.push_back(std::isfinite(c.pairs.p()) ? c.pairs.p() : 1.0);
  const std::vector<double> corrected = holm_corrected(p);
  for (size_t i = 0; i < corrected.size(); ++i) comparisons[i].corrected_p = corrected[i];
}

nlohmann::ordered_json LogComparison::to_json() const {
  nlohmann::ordered_json json{
      {"task", task},
      {"metric", metric},
      {"questions", pairs.items},
      {"first", finite_number(pairs.first_mean)},
      {"second", finite_number(pairs.second_mean)},
      {"difference", finite_number(pairs.test.mean)},
      {"error", finite_number(pairs.test.error)},
      {"interval", {finite_number(pairs.bootstrap.low), finite_number(pairs.bootstrap.high)}},
      {"p", finite_number(pairs.p())},
      {"corrected_p", finite_number(corrected_p)},
      {"only_in_first", only_in_first},
      {"only_in_second", only_in_second}};
  if (pairs.mcnemar)
    json["mcnemar"] = {{"only_first", pairs.mcnemar->only_first},
                       {"only_second", pairs.mcnemar->only_second},
                       {"exact_p", pairs.mcnemar->exact_p},
                       {"corrected_p", pairs.mcnemar->corrected_p}};
  return json;
}

}  // namespace fovea
