// Numbers and text for people: widths in terminal cells, escapes, units, and the answer of a
// comparison in words.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/report/compare_result.h"
#include "fovea/text/utf8.h"

namespace fovea {

/// One line: control characters (newline, tab, escape, ...) become spaces; valid UTF-8.
std::string single_line(std::string_view text);

/// Cells that valid UTF-8 takes on a terminal: 0 for combining marks, 2 for wide East Asian
/// characters and emoji, else 1.
int64_t display_width(std::string_view text);
/// The longest prefix of at most `width` cells; where something is cut, it ends in an ellipsis.
std::string shorten(std::string_view text, int64_t width);
/// Lines of at most `width` cells, broken at spaces where possible. At least one line.
std::vector<std::string> wrap_text(std::string_view text, int64_t width);

/// For HTML text and attributes in double quotes: escapes & < > " ' and repairs UTF-8.
std::string escape_html(std::string_view text);

/// "987", "12.3 k", "4.56 M", "7.89 B"; an en dash for NaN, as in all functions below.
std::string count_text(double value);
/// "987 B", "12.3 KB", "4.56 MB": powers of 1000.
std::string bytes_text(double bytes);
/// "12.3 %" of a share of 1.
std::string percent_text(double share);
/// "4 s", "3 min 05 s", "2 h 07 min", "3 d 04 h".
std::string duration_text(double seconds);
/// Fixed digits: "2.413".
std::string fixed_text(double value, int digits);
/// "2.413 ± 0.004", mean and standard deviation; without the second part for one run.
std::string spread_text(const Spread& spread, int digits);
/// Signed difference to the reference: "-0.0210"; an en dash for the reference.
std::string difference_text(const VariantSummary& summary, int digits);
/// The 95 % interval of the difference: "-0.0310 to -0.0110".
std::string interval_text(const VariantSummary& summary, int digits);
/// "0.012", "< 0.001".
std::string p_text(double p);
/// Seeds that would show such a difference: "12", "over 999".
std::string pairs_needed_text(const VariantSummary& summary);
/// "1.05 M tokens each", "90 s each", "1.2 M parameters each".
std::string budget_text(const CompareResult& result);

/// The answer in a few sentences: the question, each variant against the reference, and their
/// places beside the baselines. Says plainly where nothing can be said.
struct Finding {
  enum class Kind { better, worse, same, open, baseline };
  Kind kind = Kind::open;
  std::string text;
};
struct Answer {
  std::string question;           // what was compared, under which budget
  std::vector<Finding> findings;  // one sentence each, the most important first
};
Answer compare_answer(const CompareResult& result);

/// The values that compare.tuning chose, a sentence a variant; empty where nothing was tuned.
std::vector<std::string> tuning_sentences(const CompareResult& result);

/// How many runs trained at a time, and how their speeds were measured; empty for one at a time.
std::string side_by_side_sentence(const CompareResult& result);

/// The seeds that were not trained here, by machine and program; empty where there are none.
std::string origin_sentence(const CompareResult& result);

/// The rule behind the verdicts, in words; footnote of every table. `equivalence_margin` is that of
/// the comparison, 0 for none.
std::string verdict_rule(double equivalence_margin);

/// The cells of a row: task, metric, variant, score, difference to the reference, p (Holm).
std::vector<std::string> task_cells(const TaskRow& row);
std::vector<std::string> task_columns();

}  // namespace fovea
