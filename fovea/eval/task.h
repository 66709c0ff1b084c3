// A task: questions made from data or by a seed, and how answers are judged (spec 9.1, 9.2, 9.4).
//
// Questions are made one at a time, by number: the same input gives the same question n. So memory
// does not grow with them, and a run that was killed goes on at any of them. A task comes from a
// YAML file (task_file.h) or from code (made_tasks.h); task_list.h finds it by its name.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/eval/task_item.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

/// The kind of question, with its metrics.
enum class TaskKind {
  multiple_choice,  ///< log-likelihood of every ending of one context: acc, acc_norm, acc_bytes
  multiple_true,    ///< the same with several true endings: mc2, their share of the probability
  partial,          ///< of choice k behind context k (WinoGrande): acc
  last_word,        ///< of the one choice, and whether it is greedy (LAMBADA): acc, perplexity
  rolling,          ///< of the whole `context`: word_perplexity, byte_perplexity, bits_per_byte
  generate,         ///< the model writes: every metric of Task::metrics
};
std::span<const std::string_view> enum_names(TaskKind);

/// How a generated answer is judged.
struct AnswerMetric {
  std::string name;  ///< "exact_match", "string_match_all"
  /// 0 ... 1. `answer` is what the model wrote before any of Task::stop.
  std::function<double(const TaskItem& item, std::string_view answer)> score;
};

/// The input that questions are made from.
struct TaskInput {
  const Tokenizer& tokenizer;    ///< of the model; made tasks measure lengths with it
  std::filesystem::path data;    ///< folder of the data (--data); empty = none given
  int64_t limit = 0;             ///< questions at most; 0 = all, or the task's own number
  int64_t shots = -1;            ///< solved examples before the question; -1 = the task's own
  uint64_t seed = 1234;          ///< of drawn shots and of made questions
  std::vector<int64_t> lengths;  ///< of made questions, in tokens; empty = the task's own
  /// Where made questions hide what they ask for, 0 = at the start ... 1 = at the end; each depth
  /// gets the same samples at each length. Empty = the task's own rule.
  std::vector<double> depths;
  /// Text file, or folder of *.txt, that made questions hide things in; empty = the task's own.
  std::filesystem::path background;
};

/// Questions 0 ... size - 1. `make(n)` is pure: the same n gives the same question.
struct TaskItems {
  int64_t size = 0;
  std::function<TaskItem(int64_t n)> make;
};
/// Questions that exist already.
TaskItems items_of(std::vector<TaskItem> items);

struct Task {
  std::string name;   ///< "hellaswag": of the command line and of the log
  std::string title;  ///< one line for people
  TaskKind kind = TaskKind::multiple_choice;
  /// The metric that stands for the task in summaries; empty = the first.
  std::string headline;
  /// The score of guessing, where it is known; below 0 = unknown, or counted from the choices.
  double chance = -1.0;

  // Kind `generate`:
  std::vector<AnswerMetric> metrics;
  std::vector<std::string> stop;  ///< the answer ends before the first of these
  int64_t max_tokens = 0;         ///< of the answer

  /// InputError for data that is missing or cannot be used, with file:line.
  std::function<TaskItems(const TaskInput& input)> items;
};

}  // namespace fovea
