// Tasks as YAML files: templates over the records of a data file (docs/evaluation.md).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/config/fields.h"
#include "fovea/eval/answer_metric.h"
#include "fovea/eval/task.h"

namespace fovea {

/// How one layout of records becomes a question. `choices`, `labels`, `contexts`, `gold` and
/// `references` are expressions, the others texts with {{...}} in them. Which of them a task needs
/// is a matter of its kind.
struct TaskForm {
  std::string context;     ///< all kinds but partial
  std::string contexts;    ///< partial: a list
  std::string choices;     ///< multiple_choice and multiple_true: a list
  std::string labels;      ///< multiple_true: 1 or 0 for each choice
  std::string ending;      ///< partial and last_word: the text that follows the context
  std::string gold;        ///< number of the right choice or context from 0, or its text
  std::string target;      ///< generate: the answer of a shot
  std::string references;  ///< generate: a list of right answers, or one
  std::string group;       ///< subject, difficulty ...

  void describe(FieldVisitor& v);
  bool operator==(const TaskForm&) const = default;
};

/// A solved example that stands in the task file itself.
struct ShotExample {
  std::string context, target;

  void describe(FieldVisitor& v);
  bool operator==(const ShotExample&) const = default;
};

/// Which records become shots: the first of the file in order, or some drawn for every question.
enum class ShotOrder { first, drawn };
std::span<const std::string_view> enum_names(ShotOrder);

struct ShotSettings {
  int64_t count = 0;
  std::vector<ShotExample> examples;  ///< these; else records of `data`
  std::vector<std::string> data;      ///< as TaskFile::data; empty = the questions themselves
  ShotOrder order = ShotOrder::drawn;
  bool same_group = false;  ///< only records of the question's group
  std::string separator = "\n\n";

  void describe(FieldVisitor& v);
  bool operator==(const ShotSettings&) const = default;
};

/// Texts that are cleaned after their templates: as lm-evaluation-harness cleans HellaSwag (9.2).
enum class TextCleaning { none, hellaswag };
std::span<const std::string_view> enum_names(TextCleaning);

struct TaskFile {
  std::string name, title;
  TaskKind kind = TaskKind::multiple_choice;
  std::vector<std::string> data;     ///< the first of these that exists in the folder of the data
  std::vector<std::string> columns;  ///< of a CSV file without a header
  std::string description;           ///< text before shots and question
  TaskForm form;                     ///< of all records, where `forms` is empty
  std::vector<TaskForm> forms;       ///< a record takes the first whose fields it has
  std::string delimiter = " ";       ///< between a context and its choice, ending or target
  TextCleaning clean = TextCleaning::none;
  ShotSettings shots;
  std::string headline;
  std::vector<AnswerMetricSettings> metrics;
  std::vector<std::string> stop;
  int64_t max_tokens = 256;

  void describe(FieldVisitor& v);
  bool operator==(const TaskFile&) const = default;
};

/// ConfigError with file:line for keys, templates and patterns that cannot be used, and for what
/// the kind needs and the file lacks. `name` stands for the text in errors.
TaskFile parse_task_file(std::string_view yaml, const std::string& name);

/// `home`: where its data is looked for without TaskInput::data; the file's own folder.
Task make_task(const TaskFile& file, const std::filesystem::path& home = {});

/// `P` of spec 9.2: stripped; " [title]" becomes ". ", text in square brackets goes, two spaces
/// become one.
std::string cleaned_hellaswag(std::string_view text);

}  // namespace fovea
