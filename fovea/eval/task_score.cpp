// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/task_score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <set>
#include <stdexcept>

#include "fovea/text/result_json.h"

namespace fovea {
namespace {

using Items = std::vector<const ItemScore*>;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// Values that are sums for a perplexity and no metric themselves.
bool is_part(const std::string& name) {
  return name == "nll" || name == "tokens" || name == "words" || name == "bytes";
}

std::vector<double> values_of(const Items& items, const std::string& name) {
  std::vector<double> values;
  for (const ItemScore* item : items) {
    for (const auto& [key, value] : item->values) {
      if (key == name) values.push_back(value);
    }
  }
  return values;
}

double sum_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum;
}

MetricScore mean_of(const std::string& name, const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  const double mean = sum_of(values) / n;
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {.name = name,
          .value = mean,
          .error = values.size() < 2 ? kNone : std::sqrt(squares / (n - 1.0) / n),
          .items = std::ssize(values)};
}

/// exp of the nats over a unit; the units are no sample, so there is no error.
void add_perplexity(const Items& items, const char* unit, const std::string& name,
                    std::vector<MetricScore>& metrics) {
  const std::vector<double> units = values_of(items, unit);
  if (units.empty()) return;
  metrics.push_back({.name = name,
                     .value = std::exp(sum_of(values_of(items, "nll")) / sum_of(units)),
                     .error = kNone,
                     .items = std::ssize(units)});
}

std::vector<MetricScore> metrics_of(const Items& items) {
  std::vector<MetricScore> metrics;
  std::vector<std::string> names;
  for (const ItemScore* item : items) {
    for (const auto& [name, value] : item->values) {
      if (!is_part(name) && std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  metrics.reserve(names.size());
  for (const std::string& name : names) metrics.push_back(mean_of(name, values_of(items, name)));
  const std::vector<double> nll = values_of(items, "nll");
  if (nll.empty()) return metrics;
  if (values_of(items, "words").empty()) {
    // One word a question: the error of exp(mean) follows from that of the mean (delta method).
    MetricScore perplexity = mean_of("perplexity", nll);
    perplexity.value = std::exp(perplexity.value);
    perplexity.error *= perplexity.value;
    metrics.push_back(perplexity);
  }
  add_perplexity(items, "words", "word_perplexity", metrics);
  add_perplexity(items, "bytes", "byte_perplexity", metrics);
  add_perplexity(items, "tokens", "token_perplexity", metrics);
  const std::vector<double> bytes = values_of(items, "bytes");
  if (!bytes.empty())
    metrics.push_back({.name = "bits_per_byte",
                       .value = sum_of(nll) / sum_of(bytes) / std::numbers::ln2,
                       .error = kNone,
                       .items = std::ssize(bytes)});
  return metrics;
}

// Metrics by their names.
std::vector<std::pair<std::string, MetricScore>> by_name(const std::vector<MetricScore>& metrics) {
  std::vector<std::pair<std::string, MetricScore>> all;
  all.reserve(metrics.size());
  for (const MetricScore& m : metrics) all.emplace_back(m.name, m);
  return all;
}

}  // namespace

const MetricScore& TaskScore::metric(const std::string& name) const {
  const auto found = std::ranges::find(metrics, name, &MetricScore::name);
  if (found == metrics.end()) throw std::out_of_range("no metric '" + name + "'");
  return *found;
}

void TaskScore::add_items(const std::vector<ItemScore>& scores) {
  Items all;
  std::map<std::string, Items> by_group;
  std::map<std::map<std::string, double>, Items> by_axes;
  for (const ItemScore& item : scores) {
    all.push_back(&item);
    by_group[item.group].push_back(&item);
    if (!item.axes.empty()) by_axes[item.axes].push_back(&item);
  }
  items = std::ssize(all);
  metrics = metrics_of(all);
  if (by_group.size() > 1) {
    for (const auto& [group, part] : by_group)
      groups.push_back({.group = group, .metrics = metrics_of(part)});
  }
  for (const auto& [axes, part] : by_axes)
    cells.push_back({.axes = axes, .metrics = metrics_of(part)});
}

template <class V>
void describe(V& v, MetricScore& m) {
  v("value", m.value);
  v("error", m.error);
  v("items", m.items);
}

template <class V>
void describe(V& v, PartScore& p) {
  v.optional("group", p.group, !p.group.empty());
  v.optional("axes", p.axes, !p.axes.empty());
  v.derived("metrics", by_name(p.metrics));
}

template <class V>
void describe(V& v, TaskPairs& p) {
  v("share", p.share);
  v("questions", p.questions);
  v("untouched", p.untouched);
  v("tokens", p.tokens);
}

template <class V>
void describe(V& v, TaskScore& s) {
  v("task", s.task);
  v("title", s.title);
  v("items", s.items);
  v("headline", s.headline);
  v.optional("chance", s.chance, s.chance >= 0.0);
  v.derived("metrics", by_name(s.metrics));
  v.optional("contexts_cut", s.contexts_cut, s.contexts_cut > 0);
  if (s.refused > 0)
    v.group("refused", [&](auto& of) {
      of("items", s.refused);
      of("reasons", s.refusals);
    });
  v.optional("groups", s.groups, !s.groups.empty());
  v.optional("cells", s.cells, !s.cells.empty());
  v("asked", s.asked);
  v("seconds", s.seconds);
  v.optional("pairs", s.pairs, s.pairs.has_value());
}

nlohmann::ordered_json TaskScore::to_json() const { return described_json(*this); }

}  // namespace fovea
