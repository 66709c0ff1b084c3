// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/compare_logs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "fovea/base/error.h"
#include "fovea/report/equivalence.h"
#include "fovea/text/result_json.h"

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

}  // namespace

bool is_share(const std::string& metric) {
  return metric.find("perplexity") == std::string::npos && metric != "bits_per_byte";
}

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

std::optional<TaskMean> mean_over_tasks(std::span<const LogComparison> comparisons) {
  const auto no_share = [](const LogComparison& c) {
    return c.metric == "nll" || !is_share(c.metric) || c.pairs.items < 2;
  };
  if (comparisons.size() < 2 || std::ranges::any_of(comparisons, no_share)) return std::nullopt;
  TaskMean out{.tasks = std::ssize(comparisons)};
  std::vector<PairedTest> tests;
  for (const LogComparison& c : comparisons) {
    out.first += c.pairs.first_mean / static_cast<double>(out.tasks);
    out.second += c.pairs.second_mean / static_cast<double>(out.tasks);
    tests.push_back(c.pairs.test);
  }
  out.test = mean_of_tests(tests);
  return out;
}

template <class V>
void describe(V& v, TaskMean& mean) {
  v("tasks", mean.tasks);
  v("questions", mean.test.pairs);
  v("first", mean.first);
  v("second", mean.second);
  v("difference", mean.test.mean);
  v("error", mean.test.error);
  v.derived("interval", std::array{mean.test.interval.low, mean.test.interval.high});
  v("p", mean.test.p);
}

nlohmann::ordered_json TaskMean::to_json() const { return described_json(*this); }

template <class V>
void describe(V& v, McNemar& m) {
  v("only_first", m.only_first);
  v("only_second", m.only_second);
  v("exact_p", m.exact_p);
  v("corrected_p", m.corrected_p);
}

template <class V>
void describe(V& v, LogComparison& c) {
  PairedComparison& pairs = c.pairs;
  v("task", c.task);
  v("metric", c.metric);
  v("questions", pairs.items);
  v("first", pairs.first_mean);
  v("second", pairs.second_mean);
  v("difference", pairs.test.mean);
  v("error", pairs.test.error);
  v.derived("interval", std::array{pairs.bootstrap.low, pairs.bootstrap.high});
  v.derived("p", pairs.p());
  v("corrected_p", c.corrected_p);
  v("only_in_first", c.only_in_first);
  v("only_in_second", c.only_in_second);
  v.optional("mcnemar", pairs.mcnemar, pairs.mcnemar.has_value());
}

nlohmann::ordered_json LogComparison::to_json() const { return described_json(*this); }

}  // namespace fovea
