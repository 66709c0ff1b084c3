// One document answers, the others distract.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/documents.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/data/records.h"
#include "fovea/eval/answer_metric.h"
#include "fovea/eval/made/draw.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDepths = 5;

const Json& field_of(const Json& record, const char* name, const std::string& place) {
  const auto found = record.find(name);
  require<InputError>(found != record.end(), place, "expected a field '{}'; got none", name);
  return *found;
}

std::string text_of(const Json& record, const char* name, const std::string& place) {
  const Json& value = field_of(record, name, place);
  require<InputError>(value.is_string(), place, "expected a text in '{}'; got {}", name,
                      value.type_name());
  return value.get<std::string>();
}

const Json& gold_passage(const Json& record, const std::string& place) {
  const Json& passages = field_of(record, "ctxs", place);
  require<InputError>(passages.is_array() && !passages.empty() && passages.front().is_object(),
                      place, "expected a list of passages in 'ctxs'; got {}", passages.type_name());
  for (const Json& passage : passages) {
    if (passage.is_object() && passage.value("isgold", false)) return passage;
  }
  return passages.front();
}

QuestionWithPassage parse_question(const Json& record, const std::string& place) {
  const Json& passage = gold_passage(record, place);
  QuestionWithPassage q{.question = text_of(record, "question", place),
                        .title = text_of(passage, "title", place),
                        .passage = text_of(passage, "text", place)};
  const Json& answers = field_of(record, "answers", place);
  require<InputError>(answers.is_array() && !answers.empty(), place,
                      "expected a list of answers in 'answers'; got {}",
                      answers.is_array() ? "an empty one" : answers.type_name());
  for (const Json& answer : answers) {
    require<InputError>(answer.is_string(), place, "expected texts in 'answers'; got {}",
                        answer.type_name());
    q.answers.push_back(answer.get<std::string>());
  }
  return q;
}

bool has_answer(const std::string& passage, const std::vector<std::string>& answers) {
  const std::string text = " " + normalised_answer(passage) + " ";
  return std::ranges::any_of(answers, [&](const std::string& answer) {
    return text.find(normalised_answer(answer)) != std::string::npos;
  });
}

std::string document_text(DocumentPrompt style, int64_t number, const QuestionWithPassage& q) {
  return style == DocumentPrompt::ruler
             ? fmt::format("Document {}:\n{}\n{}", number, q.title, q.passage)
             : fmt::format("Document (Title: {}): {}", q.title, q.passage);
}

std::string prompt(DocumentPrompt style, const std::string& documents,
                   const std::string& question) {
  constexpr std::string_view kTask =
      "Answer the question based on the given documents. Only give me the answer and do not output "
      "any other words.";
  return style == DocumentPrompt::ruler
             ? fmt::format(
                   "{0}\n\nThe following are given documents.\n\n{1}\n\n{0}\n\nQuestion: {2} "
                   "Answer:",
                   kTask, documents, question)
             : fmt::format(
                   "Use the given documents to write a concise and short answer to the question. "
                   "Write your answer in the following format:\nAnswer: [answer]\n\n{}\n\n"
                   "Question: {}\nAnswer:",
                   documents, question);
}

/// Questions whose passages distract, in the order in which they are taken: found as needed.
class Distractors {
 public:
  Distractors(const QuestionSet& set, size_t asked, Rng& rng) : set_(set), asked_(asked) {
    order_ = draw_subset(rng, std::ssize(set.questions), std::ssize(set.questions));
  }
  std::span<const size_t> first(int64_t count) {
    const QuestionWithPassage& asked = set_.questions[asked_];
    while (std::ssize(found_) < count && next_ < order_.size()) {
      const auto q = static_cast<size_t>(order_[next_++]);
      if (q != asked_ && !has_answer(set_.questions[q].passage, asked.answers)) found_.push_back(q);
    }
    return std::span(found_).first(std::min(found_.size(), static_cast<size_t>(count)));
  }

 private:
  const QuestionSet& set_;
  size_t asked_, next_ = 0;
  std::vector<int64_t> order_;
  std::vector<size_t> found_;
};

}  // namespace

QuestionSet read_questions(const std::filesystem::path& path) {
  const RecordFile file(path);
  QuestionSet set;
  for (int64_t n = 0; n < file.size(); ++n) {
    QuestionWithPassage q = parse_question(file.record(n), file.place(n));
    if (has_answer(q.passage, q.answers)) {
      set.questions.push_back(std::move(q));
    } else {
      ++set.left_out;
    }
  }
  require<InputError>(!set.questions.empty(), path.filename().string(),
                      "expected questions whose passages hold an answer; got none in {} records",
                      file.size());
  return set;
}

TaskItem document_question(const QuestionSet& set, DocumentPrompt style, const MadeSample& sample) {
  const std::string_view name = style == DocumentPrompt::ruler ? "ruler_qa" : "rag";
  check_sample(sample, name);
  Rng rng = random_numbers(sample, name);
  const auto asked = static_cast<size_t>(sample.number % std::ssize(set.questions));
  const QuestionWithPassage& q = set.questions[asked];
  const double depth = sample.depth.value_or(static_cast<double>(sample.number % kDepths) /
                                             static_cast<double>(kDepths - 1));
  Distractors distractors(set, asked, rng);
  const auto build = [&](int64_t others) {
    std::vector<size_t> order;
    for (const size_t other : distractors.first(others)) order.push_back(other);
    const auto place = std::llround(depth * static_cast<double>(order.size()));
    order.insert(order.begin() + place, asked);
    std::vector<std::string> documents;
    for (const size_t d : order)
      documents.push_back(document_text(style, std::ssize(documents) + 1, set.questions[d]));
    return prompt(style, fmt::format("{}", fmt::join(documents, "\n\n")), q.question);
  };
  SizedPrompt sized =
      largest_prompt(sample, name, kDocumentAnswerTokens, 0, std::ssize(set.questions) - 1, build);
  return {.index = sample.number,
          .context = std::move(sized.text),
          .references = q.answers,
          .axes = {{"length", static_cast<double>(sample.length)}, {"depth", depth}}};
}

}  // namespace fovea
