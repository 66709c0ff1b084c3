// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/answer_metric.h"

#include <algorithm>
#include <array>
#include <optional>

#include "fovea/base/error.h"
#include "fovea/eval/rouge.h"
#include "fovea/text/jinja/python_text.h"
#include "fovea/text/pattern.h"

namespace fovea {
namespace {

constexpr std::array<std::string_view, 6> kRules{"exact_match", "contains_any", "contains_all",
                                                 "rouge_1",     "rouge_2",      "rouge_l"};
constexpr std::array<std::string_view, 2> kMatches{"first", "last"};
// What lm-evaluation-harness answers where a filter finds nothing.
constexpr std::string_view kNoAnswer = "[invalid]";

Pattern compile(const std::string& pattern, const std::string& metric) {
  try {
    return Pattern(pattern);
  } catch (const InputError& error) {
    fail<ConfigError>("task", "metric '{}': expected a regular expression; got '{}': {}", metric,
                      pattern, error.what());
  }
}

/// The match that counts, or its first group that took part.
std::string extracted(const Pattern& pattern, WhichMatch which, std::string_view text) {
  std::optional<std::string_view> found;
  Pattern::Search search(pattern, text);
  while (const std::optional<Pattern::Match> match = search.next()) {
    std::string_view part = text.substr(match->begin, match->end - match->begin);
    const auto groups = search.groups();
    const auto group = std::ranges::find_if(
        groups, [](const auto& g) { return g.has_value() && g->end > g->begin; });
    if (group != groups.end()) part = text.substr((*group)->begin, (*group)->end - (*group)->begin);
    found = part;
    if (which == WhichMatch::first) break;
  }
  return std::string(jinja::strip(found.value_or(kNoAnswer), jinja::Side::both));
}

std::string without(const Pattern& pattern, std::string_view text) {
  std::string rest;
  size_t from = 0;
  Pattern::Search search(pattern, text);
  while (const std::optional<Pattern::Match> match = search.next()) {
    rest += text.substr(from, match->begin - from);
    from = match->end;
  }
  return rest + std::string(text.substr(from));
}

using RougeOf = RougeScore(std::string_view reference, std::string_view summary);

/// How a rule compares two texts; null for the rules that are no ROUGE.
RougeOf* rouge_of(AnswerRule rule) {
  switch (rule) {
    case AnswerRule::rouge_1:
      return [](std::string_view a, std::string_view b) { return rouge_n(a, b, 1); };
    case AnswerRule::rouge_2:
      return [](std::string_view a, std::string_view b) { return rouge_n(a, b, 2); };
    case AnswerRule::rouge_l:
      return rouge_l;
    default:
      return nullptr;
  }
}

struct Compiled {
  AnswerMetricSettings settings;
  std::optional<Pattern> pattern;
  std::vector<Pattern> ignore;

  std::string comparable(std::string text) const {
    for (const Pattern& ignored : ignore) text = without(ignored, text);
    if (settings.ignore_case) text = jinja::lower(text);
    if (settings.normalise) text = normalised_answer(text);
    return text;
  }

  double best_rouge(RougeOf* rouge, const TaskItem& item, const std::string& answer) const {
    double best = 0.0;
    for (const std::string& reference : item.references)
      best = std::max(best, rouge(comparable(reference), answer).f1());
    return best;
  }

  double score(const TaskItem& item, std::string_view written) const {
    const std::string answer =
        comparable(pattern ? extracted(*pattern, settings.match, written) : std::string(written));
    if (const auto rouge = rouge_of(settings.rule)) return best_rouge(rouge, item, answer);
    int64_t met = 0;
    for (const std::string& reference : item.references) {
      const std::string wanted = comparable(reference);
      met += settings.rule == AnswerRule::exact_match ? answer == wanted
                                                      : answer.find(wanted) != std::string::npos;
    }
    if (settings.rule != AnswerRule::contains_all) return met > 0 ? 1.0 : 0.0;
    return item.references.empty()
               ? 0.0
               : static_cast<double>(met) / static_cast<double>(item.references.size());
  }
};

}  // namespace

std::span<const std::string_view> enum_names(AnswerRule) { return kRules; }
std::span<const std::string_view> enum_names(WhichMatch) { return kMatches; }

std::string AnswerMetricSettings::metric_name() const {
  return name.empty() ? std::string(enum_name(rule)) : name;
}

void AnswerMetricSettings::describe(FieldVisitor& v) {
  v.text({"name", "of the metric in results; empty = that of the rule"}, name);
  v.choice({"rule",
            "exact_match, contains_any (reference), contains_all (the share of them), rouge_1, "
            "rouge_2, rouge_l (F1)"},
           rule);
  v.text({"pattern", "regular expression that finds the answer in the text; empty = all of it"},
         pattern);
  v.choice({"match", "which match of the pattern is the answer: first or last"}, match);
  v.texts({"ignore", "regular expressions: their matches are removed from both sides"}, ignore);
  v.boolean({"ignore_case", "compare lower case"}, ignore_case);
  v.boolean({"normalise", "compare without case, punctuation and articles, with single spaces"},
            normalise);
}

AnswerMetric make_answer_metric(const AnswerMetricSettings& settings) {
  const std::string name = settings.metric_name();
  auto compiled = std::make_shared<Compiled>(Compiled{.settings = settings});
  if (!settings.pattern.empty()) compiled->pattern = compile(settings.pattern, name);
  for (const std::string& ignored : settings.ignore)
    compiled->ignore.push_back(compile(ignored, name));
  return {.name = name, .score = [compiled](const TaskItem& item, std::string_view answer) {
            return compiled->score(item, answer);
          }};
}

std::string normalised_answer(std::string_view text) {
  constexpr std::string_view kPunctuation = R"(!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~)";
  std::string plain;
  for (const char c : jinja::lower(text)) {
    if (kPunctuation.find(c) == std::string_view::npos) plain += c;
  }
  std::string out;
  for (const std::string_view word : jinja::split(plain, {})) {
    if (word == "a" || word == "an" || word == "the") continue;
    if (!out.empty()) out += ' ';
    out += word;
  }
  return out;
}

}  // namespace fovea
