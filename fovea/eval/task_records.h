// Makes questions from records by the templates of a task file. Private to fovea/eval.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fovea/data/records.h"
#include "fovea/eval/task_file.h"
#include "fovea/text/record_template.h"

namespace fovea {

/// A form with its templates compiled.
struct CompiledForm {
  RecordTemplate context, contexts, choices, labels, ending, gold, target, references, group;
  std::vector<std::string> fields;  ///< of records that this form takes

  CompiledForm(const TaskForm& form, const std::string& name);
};

/// A record as question or as shot: `item.context` has no shots yet.
struct RecordQuestion {
  TaskItem item;
  std::string shot;  ///< the question with its answer
};

/// Makes questions from the records of one file.
class RecordQuestions {
 public:
  RecordQuestions(const TaskFile& file, std::shared_ptr<const std::vector<CompiledForm>> forms,
                  RecordFile records)
      : file_(file), forms_(std::move(forms)), records_(std::move(records)) {}

  int64_t size() const { return records_.size(); }
  /// InputError with the place of the record: no form takes it, or a form gives what the kind
  /// cannot use.
  RecordQuestion question(int64_t n) const;

 private:
  const CompiledForm& form_of(const nlohmann::ordered_json& record, const std::string& place) const;
  std::string clean(std::string text) const;
  void read_choices(const CompiledForm& form, const nlohmann::ordered_json& record,
                    const std::string& place, TaskItem& item) const;

  TaskFile file_;
  std::shared_ptr<const std::vector<CompiledForm>> forms_;
  RecordFile records_;
};

/// The shots of a task: which stand before a question.
class Shots {
 public:
  /// `count` examples; `source` is null where the task file holds them. InputError where there are
  /// too few.
  Shots(const TaskFile& file, int64_t count, uint64_t seed,
        std::shared_ptr<const RecordQuestions> source);

  /// Shots and separators, to stand before question `n`. InputError where its group has too few.
  std::string before(int64_t n, const RecordQuestion& question) const;

 private:
  std::vector<int64_t> chosen(int64_t n, const RecordQuestion& question) const;

  ShotSettings settings_;
  std::string delimiter_;
  int64_t count_;
  uint64_t seed_;
  std::shared_ptr<const RecordQuestions> source_;
  std::vector<std::string> shots_;                        // of all records of the source
  std::map<std::string, std::vector<int64_t>> by_group_;  // "" = all, unless same_group
};

}  // namespace fovea
