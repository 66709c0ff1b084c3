// Chains of assignments.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/variable_tracking.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/eval/made/draw.h"

namespace fovea {
namespace {

constexpr std::string_view kTracking = "ruler_vt";
constexpr std::string_view kFiller[] = {"The grass is green.", "The sky is blue.",
                                        "The sun is yellow.", "Here we go.",
                                        "There and back again.\n"};
constexpr int64_t kExampleUnits = 2;  // ten sentences

struct Chain {
  std::string value;
  std::vector<std::string> variables, lines;
  std::vector<double> places;  // 0 ... 1, rising
};

Chain draw_chain(Rng& rng, DistinctDraws& names, std::vector<std::string>& values, int64_t hops) {
  Chain chain;
  do {
    chain.value = std::to_string(10'000 + draw_below(rng, 90'000));
  } while (std::ranges::find(values, chain.value) != values.end());
  values.push_back(chain.value);
  for (int64_t i = 0; i <= hops; ++i) {
    chain.variables.push_back(names(rng));
    chain.lines.push_back(
        i == 0 ? fmt::format("VAR {} = {}", chain.variables.back(), chain.value)
               : fmt::format("VAR {} = VAR {}", chain.variables.back(), chain.variables.end()[-2]));
    chain.places.push_back(rng.uniform());
  }
  std::ranges::sort(chain.places);
  return chain;
}

std::vector<Chain> draw_chains(Rng& rng, DrawKind kind, const VariableTracking& task) {
  DistinctDraws names(kind);
  std::vector<std::string> values;
  std::vector<Chain> chains;
  for (int64_t i = 0; i < task.chains; ++i)
    chains.push_back(draw_chain(rng, names, values, task.hops));
  return chains;
}

/// `units` rounds of the noise with the assignments between them; between their sentences where
/// there are fewer rounds than assignments.
std::string pour(const std::vector<Chain>& chains, int64_t units) {
  struct Line {
    size_t before;  // sentences
    std::string_view text;
  };
  const auto sentences = static_cast<size_t>(units) * std::size(kFiller);
  const size_t grain = units > std::ssize(chains.front().lines) ? std::size(kFiller) : 1;
  const auto places = static_cast<double>(sentences / grain + 1);
  std::vector<Line> lines;
  for (const Chain& chain : chains) {
    for (size_t i = 0; i < chain.lines.size(); ++i)
      lines.push_back({static_cast<size_t>(chain.places[i] * places) * grain, chain.lines[i]});
  }
  std::ranges::stable_sort(lines, {}, &Line::before);
  std::string text;
  const auto add = [&](std::string_view part) {
    if (!text.empty() && text.back() != '\n') text += ' ';
    text += part;
  };
  size_t next = 0;
  for (size_t i = 0; i <= sentences; ++i) {
    while (next < lines.size() && lines[next].before == i) add(lines[next++].text);
    if (i < sentences) add(kFiller[i % std::size(kFiller)]);
  }
  return text;
}

std::string prompt(const std::vector<Chain>& chains, int64_t units) {
  const Chain& asked = chains.front();
  return fmt::format(
      "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{}\n"
      "Question: Find all variables that are assigned the value {} in the text above. Answer: "
      "According to the chain(s) of variable assignment in the text above, {} variables are "
      "assigned the value {}, they are:",
      pour(chains, units), asked.value, asked.variables.size(), asked.value);
}

}  // namespace

TaskItem variable_question(const VariableTracking& task, const MadeSample& sample) {
  check_sample(sample, kTracking);
  require<ConfigError>(task.chains >= 1 && task.hops >= 1, kTracking,
                       "there must be a chain and a hop; got {} chains of {} hops", task.chains,
                       task.hops);
  Rng rng = random_numbers(sample, kTracking);
  const std::vector<Chain> solved = draw_chains(rng, DrawKind::variables3, task),
                           chains = draw_chains(rng, DrawKind::variables, task);
  const std::string example = fmt::format("{} {}\n\n", prompt(solved, kExampleUnits),
                                          fmt::join(solved.front().variables, " "));
  SizedPrompt sized = largest_prompt(
      sample, kTracking, kVariableAnswerTokens, 1, std::numeric_limits<int32_t>::max(),
      [&](int64_t units) { return example + prompt(chains, units); });
  return {.index = sample.number,
          .context = std::move(sized.text),
          .references = chains.front().variables,
          .axes = {{"length", static_cast<double>(sample.length)}}};
}

}  // namespace fovea
