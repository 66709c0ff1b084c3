// Facts in noise.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/babilong.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/eval/made/draw.h"

namespace fovea {
namespace {

constexpr std::array<std::string_view, 6> kRooms{"bathroom", "bedroom", "garden",
                                                 "hallway",  "kitchen", "office"};
constexpr std::array<std::string_view, 7> kPeopleAndThings{"Bill",  "Fred",     "Jeff", "Mary",
                                                           "apple", "football", "milk"};

constexpr int64_t kMostExampleFacts = 10;

struct Wording {
  std::string_view instruction, form;
};
constexpr std::array<Wording, 5> kWording{{
    {"The text below tells, among other things, where people go. Answer the question from these "
     "facts alone; what counts is the place where a person went last.",
     "Answer with the name of the place alone."},
    {"The text below tells, among other things, where people go and which things they take and "
     "leave. A thing goes where the person goes who has it, and stays where it is left. Answer the "
     "question from these facts alone.",
     "Answer with the name of the place alone."},
    {"The text below tells, among other things, where people go and which things they take and "
     "leave. A thing goes where the person goes who has it, and stays where it is left. Answer the "
     "question, where a thing was before, from these facts alone.",
     "Answer with the name of the place alone."},
    {"The text below tells, among other things, how places lie to each other. Answer the question "
     "from these facts alone.",
     "Answer with the name of the place alone."},
    {"The text below tells, among other things, who gives things to whom. Answer the question from "
     "these facts alone.",
     "Answer with one word, the person or the thing."},
}};

void check_task(int task) {
  require<ConfigError>(task >= 1 && task <= 5, "babilong", "the bAbI task must be 1 to 5; got {}",
                       task);
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string example_text(const BabiSample& sample) {
  return fmt::format("<example>\n{} {}\nAnswer: {}\n</example>", fmt::join(sample.facts, " "),
                     sample.question, sample.answer);
}

/// The examples of at most kMostExampleFacts facts; all where these are fewer than the shots.
std::vector<const BabiSample*> short_examples(const BabilongTask& task) {
  std::vector<const BabiSample*> few, all;
  for (const BabiSample& example : task.examples) {
    all.push_back(&example);
    if (std::ssize(example.facts) <= kMostExampleFacts) few.push_back(&example);
  }
  return std::ssize(few) >= task.shots ? few : all;
}

/// `places`, in [0, 1) and rising, choose the gap before each fact.
std::string pour(const std::vector<std::string>& noise, const std::vector<std::string>& facts,
                 const std::vector<double>& places) {
  std::vector<std::string_view> text;
  size_t taken = 0;
  for (size_t f = 0; f < facts.size(); ++f) {
    const auto gap = static_cast<size_t>(places[f] * static_cast<double>(noise.size() + 1));
    while (taken < gap) text.push_back(noise[taken++]);
    text.push_back(facts[f]);
  }
  while (taken < noise.size()) text.push_back(noise[taken++]);
  return fmt::format("{}", fmt::join(text, " "));
}

}  // namespace

std::span<const std::string_view> babilong_labels(int task) {
  check_task(task);
  if (task == 5) return kPeopleAndThings;
  return kRooms;
}

double babilong_score(std::string_view output, std::string_view target, std::string_view question,
                      std::span<const std::string_view> labels) {
  std::string said = lower(output);
  // As BABILong: the first sentence, without examples that the model makes up.
  for (const std::string_view end : {".", "<context>", "<example>"})
    said = said.substr(0, said.find(end));
  const std::string asked = lower(question), wanted = lower(target);
  int64_t named = 0;
  bool right = false;
  for (const std::string_view label : labels) {
    const std::string word = lower(label);
    if (asked.find(word) != std::string::npos || said.find(word) == std::string::npos) continue;
    ++named;
    right = word == wanted;
  }
  return named == 1 && right ? 1.0 : 0.0;
}

Prose noise_of(const Prose& prose, const Tokenizer& tokenizer) {
  Prose noise{.name = prose.name, .sentences = {}, .words_before = {0}};
  for (size_t i = 0; i < prose.sentences.size(); ++i) {
    if (std::ssize(tokenizer.encode(" " + prose.sentences[i])) < kFewestSentenceTokens) continue;
    noise.sentences.push_back(prose.sentences[i]);
    noise.words_before.push_back(noise.words() + prose.words_before[i + 1] - prose.words_before[i]);
  }
  require<InputError>(!noise.sentences.empty(), "babilong",
                      "the noise must have sentences of {} tokens or more; '{}' has none",
                      kFewestSentenceTokens, prose.name);
  return noise;
}

std::vector<BabiSample> samples_for(const std::vector<BabiSample>& samples,
                                    const Tokenizer& tokenizer, int64_t length) {
  if (length == 0) return samples;
  std::vector<BabiSample> kept;
  for (const BabiSample& sample : samples) {
    const std::string facts = fmt::format("{}", fmt::join(sample.facts, " "));
    if (2 * std::ssize(tokenizer.encode(facts)) <= length) kept.push_back(sample);
  }
  require<ConfigError>(!kept.empty(), "babilong",
                       "the length must be twice that of a story's facts; got {}: all {} stories "
                       "are longer",
                       length, samples.size());
  return kept;
}

TaskItem babilong_question(const BabilongTask& task, const MadeSample& sample, const Prose& noise) {
  check_task(task.task);
  const std::string name = fmt::format("babilong_qa{}", task.task);
  const bool facts_only = sample.length == 0;
  if (!facts_only) check_sample(sample, name);
  require<ConfigError>(
      !task.samples.empty() && std::ssize(task.examples) >= task.shots && task.shots >= 0, name,
      "there must be a story and an example for each of the {} shots; got "
      "{} stories, {} examples",
      task.shots, task.samples.size(), task.examples.size());
  Rng rng = random_numbers(sample, name);
  const BabiSample& story =
      task.samples[static_cast<size_t>(sample.number % std::ssize(task.samples))];
  const std::vector<const BabiSample*> shown = short_examples(task);
  std::vector<std::string> examples;
  for (const int64_t i : draw_subset(rng, std::ssize(shown), task.shots))
    examples.push_back(example_text(*shown[static_cast<size_t>(i)]));
  const int64_t from = draw_below(rng, std::ssize(noise.sentences));
  std::vector<double> places;
  for (size_t i = 0; i < story.facts.size(); ++i) places.push_back(rng.uniform());
  std::ranges::sort(places);

  const Wording& wording = kWording[static_cast<size_t>(task.task - 1)];
  const auto build = [&](int64_t words) {
    return fmt::format(
        "{}\n\n{}{}{}\n\n<context>\n{}\n</context>\n\nQuestion: {}\nAnswer:", wording.instruction,
        fmt::join(examples, "\n\n"), examples.empty() ? "" : "\n\n", wording.form,
        pour(take_words(noise, from, words), story.facts, places), story.question);
  };
  std::string text = facts_only ? build(0)
                                : largest_prompt(sample, name, kBabilongAnswerTokens, 0,
                                                 std::numeric_limits<int32_t>::max(), build)
                                      .text;
  return {.index = sample.number,
          .context = std::move(text),
          .references = {story.answer},
          .axes = {{"length", static_cast<double>(sample.length)}}};
}

}  // namespace fovea
