// Haystacks and the needles in them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/needles.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace fovea {
namespace {

using Haystack = NeedleTask::Haystack;

constexpr std::array<NeedleTask, 8> kTasks{{
    {.name = "niah_single_1",
     .title = "RULER: one number in one sentence repeated",
     .haystack = Haystack::noise},
    {.name = "niah_single_2", .title = "RULER: one number in prose"},
    {.name = "niah_single_3", .title = "RULER: one UUID in prose", .value = DrawKind::uuids},
    {.name = "niah_multikey_1", .title = "RULER: four keys in prose, one asked", .keys = 4},
    {.name = "niah_multikey_2",
     .title = "RULER: one number in a haystack of needles",
     .haystack = Haystack::needles},
    {.name = "niah_multikey_3",
     .title = "RULER: one UUID in a haystack of needles with UUIDs for keys",
     .haystack = Haystack::needles,
     .key = DrawKind::uuids,
     .value = DrawKind::uuids},
    {.name = "niah_multivalue", .title = "RULER: four values of one key in prose", .values = 4},
    {.name = "niah_multiquery",
     .title = "RULER: four keys in prose, all asked",
     .keys = 4,
     .queries = 4},
}};

constexpr std::string_view kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
constexpr int64_t kDepthPoints = 40;

struct Needle {
  size_t key;
  std::string sentence;
  double depth = 0;  // 0 ... 1
};

std::string_view type_name(DrawKind kind, bool plural) {
  const std::string_view name = kind == DrawKind::uuids   ? "uuids"
                                : kind == DrawKind::words ? "words"
                                                          : "numbers";
  return plural ? name : name.substr(0, name.size() - 1);
}

std::string needle_sentence(const NeedleTask& task, std::string_view key, std::string_view value) {
  return fmt::format("One of the special magic {} for {} is: {}.", type_name(task.value, true), key,
                     value);
}

/// What is hidden and what is asked; the haystack is poured around it.
struct Problem {
  std::vector<std::string> keys;
  std::vector<std::vector<std::string>> values;
  std::vector<size_t> queries;
  std::vector<Needle> needles;  // by rising depth
  double depth = 0;             // of the needle asked
};

/// The k-th of 40 points from 0 to 1, whole per cents as RULER has them.
double depth_point(int64_t k) {
  return std::round(100.0 * static_cast<double>(k) / static_cast<double>(kDepthPoints - 1)) / 100.0;
}

void place(const MadeSample& sample, Rng& rng, Problem& problem) {
  const std::vector<int64_t> points = draw_subset(rng, kDepthPoints, std::ssize(problem.needles));
  for (size_t i = 0; i < points.size(); ++i) problem.needles[i].depth = depth_point(points[i]);
  const auto asked = std::ranges::find(problem.needles, problem.queries.front(), &Needle::key);
  if (sample.depth) asked->depth = *sample.depth;
  problem.depth = asked->depth;
  std::ranges::stable_sort(problem.needles, {}, &Needle::depth);
}

Problem pose(const NeedleTask& task, const MadeSample& sample, Rng& rng) {
  Problem problem;
  DistinctDraws keys(task.key), values(task.value);
  for (int64_t k = 0; k < task.keys; ++k) {
    problem.keys.push_back(keys(rng));
    problem.values.emplace_back();
    for (int64_t v = 0; v < task.values; ++v) {
      problem.values.back().push_back(values(rng));
      problem.needles.push_back(
          {.key = static_cast<size_t>(k),
           .sentence = needle_sentence(task, problem.keys.back(), problem.values.back().back())});
    }
  }
  for (const int64_t k : draw_subset(rng, task.keys, task.queries))
    problem.queries.push_back(static_cast<size_t>(k));
  shuffle(rng, problem.needles);
  place(sample, rng, problem);
  return problem;
}

/// Needles among `lines`, each at floor(depth * lines) but behind those before it.
std::string pour(std::span<const std::string> lines, const std::vector<Needle>& needles,
                 std::string_view between) {
  std::vector<std::string_view> text;
  size_t taken = 0;
  for (const Needle& needle : needles) {
    // 1e-9: a depth of 0.29 of 100 sentences is sentence 29, not 28.
    const auto before =
        static_cast<size_t>(std::floor(needle.depth * static_cast<double>(lines.size()) + 1e-9));
    while (taken < before) text.push_back(lines[taken++]);
    text.push_back(needle.sentence);
  }
  while (taken < lines.size()) text.push_back(lines[taken++]);
  return fmt::format("{}", fmt::join(text, between));
}

/// The other needles of a haystack: the first `count` of one sequence per sample.
class OtherNeedles {
 public:
  OtherNeedles(const NeedleTask& task, const Problem& problem, Rng rng)
      : task_(task),
        rng_(rng),
        keys_(task.key, {problem.keys.begin(), problem.keys.end()}),
        values_(task.value, {problem.values.front().begin(), problem.values.front().end()}) {}
  std::span<const std::string> first(int64_t count) {
    while (std::ssize(lines_) < count) {
      const std::string key = keys_(rng_);
      lines_.push_back(needle_sentence(task_, key, values_(rng_)));
    }
    return std::span(lines_).first(static_cast<size_t>(count));
  }

 private:
  const NeedleTask& task_;
  Rng rng_;
  DistinctDraws keys_, values_;
  std::vector<std::string> lines_;
};

std::string query_text(const Problem& problem) {
  std::vector<std::string_view> names;
  for (const size_t k : problem.queries) names.push_back(problem.keys[k]);
  if (names.size() == 1) return std::string(names.front());
  const std::span<const std::string_view> all(names);
  return fmt::format("{}, and {}", fmt::join(all.first(all.size() - 1), ", "), names.back());
}

std::string prompt(const NeedleTask& task, const std::string& query, const std::string& context) {
  const bool many = task.answers() > 1;
  const std::string_view type = type_name(task.value, many);
  return many
             ? fmt::format(
                   "Some special magic {0} are hidden within the following text. Make sure to "
                   "memorize it. I will quiz you about the {0} afterwards.\n{1}\nWhat are all the "
                   "special magic {0} for {2} mentioned in the provided text? The special magic "
                   "{0} for {2} mentioned in the provided text are",
                   type, context, query)
             : fmt::format(
                   "A special magic {0} is hidden within the following text. Make sure to memorize "
                   "it. I will quiz you about the {0} afterwards.\n{1}\nWhat is the special magic "
                   "{0} for {2} mentioned in the provided text? The special magic {0} for {2} "
                   "mentioned in the provided text is",
                   type, context, query);
}

}  // namespace

std::span<const NeedleTask> needle_tasks() { return kTasks; }

TaskItem needle_question(const NeedleTask& task, const MadeSample& sample, const Prose& prose) {
  check_sample(sample, task.name);
  Rng rng = random_numbers(sample, task.name);
  const Problem problem = pose(task, sample, rng);
  const std::string query = query_text(problem);
  OtherNeedles others(task, problem, rng);
  const auto haystack = [&](int64_t units) {
    switch (task.haystack) {
      case Haystack::noise:
        return pour(std::vector<std::string>(static_cast<size_t>(units), std::string(kNoise)),
                    problem.needles, "\n");
      case Haystack::needles:
        return pour(others.first(units), problem.needles, "\n");
      case Haystack::prose:
        break;
    }
    return pour(take_words(prose, 0, units), problem.needles, " ");
  };
  SizedPrompt sized =
      largest_prompt(sample, task.name, kNeedleAnswerTokens, 1, std::numeric_limits<int32_t>::max(),
                     [&](int64_t units) { return prompt(task, query, haystack(units)); });
  TaskItem item{.index = sample.number, .context = std::move(sized.text)};
  for (const size_t k : problem.queries)
    item.references.insert(item.references.end(), problem.values[k].begin(),
                           problem.values[k].end());
  item.axes = {{"length", static_cast<double>(sample.length)}, {"depth", problem.depth}};
  return item;
}

}  // namespace fovea
