// Compares the text that a model wrote with the right answers (spec 9.2: exact match with filters;
// 9.4: containment).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/config/fields.h"
#include "fovea/eval/task.h"

namespace fovea {

/// `exact_match`: the answer equals one reference. `contains_any`: it contains one of them.
/// `contains_all`: the share of them that it contains. ROUGE (rouge.h): F1 with the reference that
/// gives most.
enum class AnswerRule { exact_match, contains_any, contains_all, rouge_1, rouge_2, rouge_l };
std::span<const std::string_view> enum_names(AnswerRule);

/// Which match of a pattern is the answer.
enum class WhichMatch { first, last };
std::span<const std::string_view> enum_names(WhichMatch);

/// A metric as a task file writes it. The answer goes through `pattern` first: one of its matches
/// is the answer, or its first group that took part; without a match the answer is "[invalid]".
/// Then both sides lose what the patterns of `ignore` match, and are compared.
struct AnswerMetricSettings {
  std::string name;  ///< empty = that of the rule
  AnswerRule rule = AnswerRule::exact_match;
  std::string pattern;
  WhichMatch match = WhichMatch::first;
  std::vector<std::string> ignore;
  bool ignore_case = false;
  bool normalise = false;  ///< lower case; no punctuation, no a, an, the; single spaces (9.5)

  /// `name`, or that of the rule.
  std::string metric_name() const;
  void describe(FieldVisitor& v);
  bool operator==(const AnswerMetricSettings&) const = default;
};

/// ConfigError for a pattern that cannot be used.
AnswerMetric make_answer_metric(const AnswerMetricSettings& settings);

/// Lower case, without ASCII punctuation and the words a, an, the; single spaces (9.5).
std::string normalised_answer(std::string_view text);

}  // namespace fovea
