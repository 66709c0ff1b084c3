// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/task_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/base/paths.h"
#include "fovea/base/printable.h"
#include "fovea/config/reader.h"
#include "fovea/text/jinja/python_text.h"

namespace fovea {
namespace {

constexpr std::array<std::string_view, 2> kOrders{"first", "drawn"};
constexpr std::array<std::string_view, 2> kCleanings{"none", "hellaswag"};
constexpr int64_t kMostShots = 1000;

/// ConfigError where a form lacks what the kind needs.
void check_form(const TaskFile& file, const TaskForm& form, const std::string& place) {
  struct Need {
    const char* key;
    const std::string& text;
    bool needed;
  };
  const bool partial = file.kind == TaskKind::partial;
  const bool choice = file.kind == TaskKind::multiple_choice;
  const bool several = file.kind == TaskKind::multiple_true;
  const bool generate = file.kind == TaskKind::generate;
  const Need needs[] = {{"context", form.context, !partial},
                        {"contexts", form.contexts, partial},
                        {"choices", form.choices, choice || several},
                        {"labels", form.labels, several},
                        {"ending", form.ending, partial || file.kind == TaskKind::last_word},
                        {"gold", form.gold, choice || partial},
                        {"references", form.references, generate}};
  for (const Need& need : needs) {
    require<ConfigError>(!need.needed || !need.text.empty(), place,
                         "a task of kind {} needs the key '{}'; got none", enum_name(file.kind),
                         need.key);
    require<ConfigError>(need.needed || need.text.empty(), place,
                         "a task of kind {} has no use for the key '{}'; remove it",
                         enum_name(file.kind), need.key);
  }
  require<ConfigError>(
      form.target.empty() || generate, place,
      "'target' is the answer in a shot of kind generate; the shots of kind {} end "
      "with their right choice",
      enum_name(file.kind));
}

/// The metrics that run_task() gives for this kind.
std::vector<std::string> metric_names(const TaskFile& file) {
  switch (file.kind) {
    case TaskKind::multiple_choice:
      return {"acc", "acc_norm", "acc_bytes"};
    case TaskKind::multiple_true:
      return {"mc2"};
    case TaskKind::partial:
      return {"acc"};
    case TaskKind::last_word:
      return {"acc", "perplexity", "token_perplexity"};
    case TaskKind::rolling:
      return {"word_perplexity", "byte_perplexity", "token_perplexity", "bits_per_byte"};
    case TaskKind::generate:
      break;
  }
  std::vector<std::string> names;
  for (const AnswerMetricSettings& metric : file.metrics) names.push_back(metric.metric_name());
  return names;
}

}  // namespace

std::span<const std::string_view> enum_names(ShotOrder) { return kOrders; }
std::span<const std::string_view> enum_names(TextCleaning) { return kCleanings; }

void TaskForm::describe(FieldVisitor& v) {
  v.text({"context", "text that the model reads"}, context);
  v.text({"contexts", "expression: one context a choice (kind partial)"}, contexts);
  v.text({"choices", "expression: the endings to choose from (multiple_choice, multiple_true)"},
         choices);
  v.text({"labels", "expression: 1 for a true choice, 0 for another (kind multiple_true)"}, labels);
  v.text({"ending", "text that follows the context (kinds partial and last_word)"}, ending);
  v.text({"gold", "expression: number of the right choice from 0, or its text"}, gold);
  v.text({"target", "text of the answer in a shot (kind generate)"}, target);
  v.text({"references", "expression: the right answers, or one (kind generate)"}, references);
  v.text({"group", "text: questions of one group are scored by themselves as well"}, group);
}

void ShotExample::describe(FieldVisitor& v) {
  v.text({"context", "the question as the model reads it"}, context);
  v.text({"target", "its answer"}, target);
}

void ShotSettings::describe(FieldVisitor& v) {
  v.integer({"count", "solved examples before the question", {0, kMostShots}}, count);
  v.nested_list({"examples", "the examples themselves: context, target"}, examples);
  v.texts({"data", "file of the records that become shots; empty = that of the questions"}, data);
  v.choice({"order",
            "first: the first records in order; drawn: some for every question, by the "
            "seed"},
           order);
  v.boolean({"same_group", "only records of the question's group"}, same_group);
  v.text({"separator", "between shots, and before the question"}, separator);
}

void TaskFile::describe(FieldVisitor& v) {
  v.text({"name", "of the command line and the log"}, name);
  v.text({"title", "one line for people"}, title);
  v.choice({"kind", "multiple_choice, multiple_true, partial, last_word, rolling or generate"},
           kind);
  v.texts({"data", "file in the folder of the data; of several the first that is there"}, data);
  v.texts({"columns", "names of the fields of a CSV file that has no header line"}, columns);
  v.text({"description", "text before shots and question"}, description);
  form.describe(v);
  v.nested_list({"forms",
                 "for records of several layouts: a record takes the first form whose "
                 "fields it has"},
                forms);
  v.text({"delimiter", "between a context and its choice, ending or target"}, delimiter);
  v.choice({"clean", "cleaning of contexts and choices: none or hellaswag"}, clean);
  v.nested({"shots", "solved examples before the question"}, shots);
  v.text({"headline", "the metric that stands for the task; empty = the first"}, headline);
  v.nested_list({"metrics", "how answers are judged (kind generate)"}, metrics);
  v.texts({"stop", "an answer ends before the first of these strings (kind generate)"}, stop);
  v.integer({"max_tokens", "of an answer (kind generate)", {1, ranges::kMostPositions}},
            max_tokens);
}

TaskFile parse_task_file(std::string_view yaml, const std::string& name) {
  TaskFile file;
  const ConfigNode root = parse_yaml(yaml, name);
  read_fields(root, file);
  const std::string why = why_no_file_name(file.name);
  require<ConfigError>(why.empty(), name,
                       "a task needs a 'name' that can be the name of its log; got '{}': {}",
                       printable_line(file.name), why);
  require<ConfigError>(!file.data.empty(), name, "a task needs the key 'data'; got none");
  require<ConfigError>(file.forms.empty() || file.form == TaskForm{}, name,
                       "expected templates at the top or under 'forms'; got both");
  if (file.forms.empty()) file.forms.push_back(file.form);
  file.form = {};
  for (size_t i = 0; i < file.forms.size(); ++i)
    check_form(file, file.forms[i],
               file.forms.size() == 1 ? name : fmt::format("{}, forms.{}", name, i));
  const bool generate = file.kind == TaskKind::generate;
  require<ConfigError>(generate || (file.metrics.empty() && file.stop.empty()), name,
                       "'metrics' and 'stop' belong to the kind generate; got the kind {}",
                       enum_name(file.kind));
  require<ConfigError>(file.kind != TaskKind::rolling || file.shots.count == 0, name,
                       "a task of kind rolling has no shots; got {}", file.shots.count);
  if (generate && file.metrics.empty()) file.metrics.emplace_back();
  const std::vector<std::string> known = metric_names(file);
  require<ConfigError>(
      file.headline.empty() || std::ranges::find(known, file.headline) != known.end(), name,
      "'headline' must be one of {}; got '{}'{}", fmt::join(known, ", "), file.headline,
      did_you_mean(file.headline, known));
  return file;
}

std::string cleaned_hellaswag(std::string_view text) {
  std::string out(jinja::strip(text, jinja::Side::both));
  out = jinja::replace(out, " [title]", ". ");
  for (size_t open = 0; (open = out.find('[', open)) != std::string::npos;) {
    // The shortest run in brackets on one line, as `\[.*?\]` finds it.
    const size_t end = out.find_first_of("]\n", open);
    if (end == std::string::npos || out[end] == '\n') {
      ++open;
    } else {
      out.erase(open, end - open + 1);
    }
  }
  return jinja::replace(out, "  ", " ");
}

}  // namespace fovea
