// Questions on one of many documents: RULER's QA and HELMET's RAG, from any file of questions with
// their passages.
//
// The passages of other questions are the distractors; one that contains an answer is not taken.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fovea/eval/made/sample.h"
#include "fovea/eval/task_item.h"

namespace fovea {

struct QuestionWithPassage {
  std::string question, title, passage;
  std::vector<std::string> answers;  ///< any of them is right; one at least is in the passage
};

struct QuestionSet {
  std::vector<QuestionWithPassage> questions;
  int64_t left_out = 0;  ///< records whose passage has no answer in it
};

/// Records with "question", "answers" (texts) and "ctxs" (objects with "title" and "text"; the one
/// with "isgold", else the first, is the passage): lost-in-the-middle's form of NQ-open. InputError
/// with file:line for a record without these, or a file without questions.
QuestionSet read_questions(const std::filesystem::path& path);

/// How documents and question are put.
enum class DocumentPrompt { ruler, helmet };

inline constexpr int64_t kDocumentAnswerTokens = 32;

/// Question `sample.number` (of the set, again from the start behind its end) with as many
/// documents as fit. The right one is number round(depth * (documents - 1)); the task's own depths
/// are 0, 1/4, 1/2, 3/4 and 1 in turn. Axes: "length", "depth".
TaskItem document_question(const QuestionSet& set, DocumentPrompt style, const MadeSample& sample);

}  // namespace fovea
