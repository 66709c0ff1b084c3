// The list of made tasks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made_tasks.h"

#include <algorithm>
#include <optional>

#include "fovea/base/error.h"
#include "fovea/base/paths.h"
#include "fovea/eval/answer_metric.h"
#include "fovea/eval/made/babilong.h"
#include "fovea/eval/made/classification.h"
#include "fovea/eval/made/copying.h"
#include "fovea/eval/made/documents.h"
#include "fovea/eval/made/key_value.h"
#include "fovea/eval/made/multi_needle.h"
#include "fovea/eval/made/needles.h"
#include "fovea/eval/made/variable_tracking.h"
#include "fovea/eval/made/word_counts.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using MakeQuestion = std::function<TaskItem(const MadeSample&)>;

AnswerMetric string_match_all() {
  return make_answer_metric(
      {.name = "string_match_all", .rule = AnswerRule::contains_all, .ignore_case = true});
}

AnswerMetric string_match_part() {
  return make_answer_metric(
      {.name = "string_match_part", .rule = AnswerRule::contains_any, .ignore_case = true});
}

AnswerMetric substring_exact_match() {
  return make_answer_metric(
      {.name = "substring_exact_match", .rule = AnswerRule::contains_any, .normalise = true});
}

/// Questions made when they are asked for: lengths take turns, then depths, then samples. `least`:
/// the shortest length that has a meaning.
TaskItems by_length(const TaskInput& input, std::string_view task, MakeQuestion make,
                    int64_t least = 1) {
  std::vector<int64_t> lengths = input.lengths;
  if (lengths.empty()) lengths.assign(std::begin(kMadeLengths), std::end(kMadeLengths));
  for (const int64_t length : lengths)
    require<ConfigError>(length >= least, task, "lengths must be at least {} tokens; got {}", least,
                         length);
  require<ConfigError>(input.limit >= 0, task,
                       "the number of questions must be 0 (the task's own) or more; got {}",
                       input.limit);
  std::vector<std::optional<double>> depths(input.depths.begin(), input.depths.end());
  if (depths.empty()) depths.emplace_back(std::nullopt);
  // A length without room, or a depth where there is none, is refused now, not in the middle of a
  // run.
  for (const std::optional<double>& depth : depths) {
    const TaskItem first = make({.tokenizer = input.tokenizer,
                                 .length = *std::ranges::min_element(lengths),
                                 .number = 0,
                                 .seed = input.seed,
                                 .depth = depth});
    require<ConfigError>(!depth || first.axes.contains("depth"), task,
                         "its questions have no depth, so that depths must be empty; got {:g}",
                         depth.value_or(0.0));
  }
  const auto samples_of_all = [&](int64_t each) {
    const auto at_a_length = std::ssize(depths);
    return (each + at_a_length - 1) / at_a_length * at_a_length * std::ssize(lengths);
  };
  return {.size = input.limit > 0 ? input.limit : samples_of_all(kMadeQuestions),
          .make = [&tokenizer = input.tokenizer, seed = input.seed, lengths, depths,
                   make = std::move(make)](int64_t n) {
            const int64_t of_lengths = std::ssize(lengths), of_depths = std::ssize(depths);
            TaskItem item =
                make({.tokenizer = tokenizer,
                      .length = lengths[static_cast<size_t>(n % of_lengths)],
                      .number = n / of_lengths / of_depths,
                      .seed = seed,
                      .depth = depths[static_cast<size_t>(n / of_lengths % of_depths)]});
            item.index = n;
            return item;
          }};
}

/// The first of `names` that is in the data folder.
fs::path find_data(const TaskInput& input, std::string_view task,
                   std::initializer_list<std::string_view> names) {
  require<InputError>(!input.data.empty(), task,
                      "expected a folder of data with '{}'; got none: give it with --data",
                      *names.begin());
  for (const std::string_view name : names) {
    if (path_exists(input.data / name)) return input.data / name;
  }
  fail<InputError>(task, "expected '{}' in the folder of data '{}'; it is not there",
                   *names.begin(), input.data.string());
}

/// The text around the facts of BABILong: a book, where the data has one.
std::shared_ptr<const Prose> babilong_prose(const TaskInput& input) {
  const fs::path books = input.data / "text/gutenberg";
  if (!input.background.empty() || input.data.empty() || !is_folder(books))
    return background_prose(input);
  for (const fs::path& path : folder_entries(books)) {
    if (path.extension() == ".txt") return std::make_shared<const Prose>(read_prose(path));
  }
  return background_prose(input);
}

Task needle_task(const NeedleTask& task) {
  return {.name = std::string(task.name),
          .title = std::string(task.title),
          .kind = TaskKind::generate,
          .chance = 0.0,
          .metrics = {string_match_all()},
          .max_tokens = kNeedleAnswerTokens,
          .items = [&task](const TaskInput& input) {
            return by_length(input, task.name,
                             [&task, prose = background_prose(input)](const MadeSample& sample) {
                               return needle_question(task, sample, *prose);
                             });
          }};
}

Task multi_needle_task(int64_t needles) {
  const std::string name = fmt::format("multi_needle_{}", needles);
  return {.name = name,
          .title = fmt::format("Multi-Token paper: {} magic numbers in prose, one asked", needles),
          .kind = TaskKind::generate,
          .chance = 0.0,
          .metrics = {make_answer_metric({.name = "first_number", .pattern = "[0-9]+"})},
          .stop = {"\n"},
          .max_tokens = kMultiNeedleAnswerTokens,
          .items = [needles, name](const TaskInput& input) {
            return by_length(input, name,
                             [needles, prose = background_prose(input)](const MadeSample& sample) {
                               return multi_needle_question(needles, sample, *prose);
                             });
          }};
}

/// A task of RULER that is made from nothing.
Task counting_task(std::string name, std::string title, int64_t answer_tokens, MakeQuestion make) {
  return {.name = name,
          .title = std::move(title),
          .kind = TaskKind::generate,
          .chance = 0.0,
          .metrics = {string_match_all()},
          .max_tokens = answer_tokens,
          .items = [name, make = std::move(make)](const TaskInput& input) {
            return by_length(input, name, make);
          }};
}

Task document_task(DocumentPrompt style) {
  const bool ruler = style == DocumentPrompt::ruler;
  const std::string name = ruler ? "ruler_qa" : "rag";
  return {.name = name,
          .title = ruler ? "RULER: a question on one of many documents"
                         : "HELMET RAG: a question on one of many documents",
          .kind = TaskKind::generate,
          .chance = 0.0,
          .metrics = {ruler ? string_match_part() : substring_exact_match()},
          // Not at the end of a line: small models put the answer on the next one.
          .stop = {"\nQuestion:"},
          .max_tokens = kDocumentAnswerTokens,
          .items = [style, name](const TaskInput& input) {
            const auto set = std::make_shared<const QuestionSet>(read_questions(
                find_data(input, name,
                          {"longcontext/nq_open_oracle.jsonl.gz", "nq_open_oracle.jsonl.gz",
                           "longcontext/nq_open_oracle.jsonl", "nq_open_oracle.jsonl"})));
            return by_length(input, name, [style, set](const MadeSample& sample) {
              return document_question(*set, style, sample);
            });
          }};
}

Task key_value_task() {
  return {.name = "json_kv",
          .title = "HELMET recall: the value of a UUID in a JSON object",
          .kind = TaskKind::generate,
          .chance = 0.0,
          .metrics = {substring_exact_match()},
          .stop = {"\n"},
          .max_tokens = kKeyValueAnswerTokens,
          .items = [](const TaskInput& input) {
            const KeyValueTask task{.shots = input.shots < 0 ? 2 : input.shots};
            return by_length(input, "json_kv", [task](const MadeSample& sample) {
              return key_value_question(task, sample);
            });
          }};
}

Task key_value_file_task(int64_t pairs) {
  const std::string name = fmt::format("kv_retrieval_{}", pairs);
  return {
      .name = name,
      .title = fmt::format("lost-in-the-middle: the value of a UUID among {} pairs", pairs),
      .kind = TaskKind::generate,
      .chance = 0.0,
      .metrics = {substring_exact_match()},
      .stop = {"\n"},
      .max_tokens = kKeyValueAnswerTokens,
      .items = [name](const TaskInput& input) -> TaskItems {
        require<ConfigError>(input.depths.empty(), name,
                             "its questions stand in a file, with their own depths, so that depths "
                             "must be empty; got {}",
                             input.depths.size());
        const std::string file = name + "_keys.jsonl";
        const auto records = std::make_shared<const std::vector<KeyValueRecord>>(read_key_values(
            find_data(input, name,
                      {"longcontext/" + file + ".gz", file + ".gz", "longcontext/" + file, file})));
        const int64_t shots = std::max<int64_t>(0, input.shots), all = std::ssize(*records);
        return {.size = input.limit > 0 ? std::min(input.limit, all) : all,
                .make = [records, shots, seed = input.seed](int64_t n) {
                  return key_value_question(records->at(static_cast<size_t>(n)), shots, n, seed);
                }};
      }};
}

/// The question that a prompt of BABILong ends with.
std::string_view babilong_asked(std::string_view context) {
  constexpr std::string_view kMark = "\nQuestion: ";
  const size_t at = context.rfind(kMark);
  return at == std::string_view::npos ? context : context.substr(at + kMark.size());
}

Task babilong_task(int number) {
  const std::string name = fmt::format("babilong_qa{}", number);
  const auto labels = babilong_labels(number);
  return {.name = name,
          .title = fmt::format("BABILong: facts of bAbI task {} scattered over a book", number),
          .kind = TaskKind::generate,
          .chance = 1.0 / static_cast<double>(labels.size()),
          .metrics = {{.name = "label_match",
                       .score =
                           [labels](const TaskItem& item, std::string_view answer) {
                             return babilong_score(answer, item.references.front(),
                                                   babilong_asked(item.context), labels);
                           }}},
          .stop = {"\n"},
          .max_tokens = kBabilongAnswerTokens,
          .items = [number, name](const TaskInput& input) {
            const fs::path folder = find_data(input, name, {"babi", "."});
            // The same stories at every length.
            const int64_t shortest =
                input.lengths.empty() ? kMadeLengths[0] : *std::ranges::min_element(input.lengths);
            const auto task = std::make_shared<BabilongTask>(
                BabilongTask{.task = number,
                             .samples = samples_for(read_babi(find_babi(folder, number, "test")),
                                                    input.tokenizer, shortest),
                             .examples = read_babi(find_babi(folder, number, "train")),
                             .shots = input.shots < 0 ? 2 : input.shots});
            const auto noise =
                std::make_shared<const Prose>(noise_of(*babilong_prose(input), input.tokenizer));
            return by_length(
                input, name,
                [task, noise](const MadeSample& sample) {
                  return babilong_question(*task, sample, *noise);
                },
                0);
          }};
}

Task copy_task(CopyKind kind) {
  const std::string name = kind == CopyKind::copy ? "copy" : "induction";
  return {.name = name,
          .title = kind == CopyKind::copy ? "the next word of a list that comes again"
                                          : "the word that stood behind this one",
          .kind = TaskKind::multiple_choice,
          .headline = "acc",
          .items = [kind, name](const TaskInput& input) {
            return by_length(input, name, [kind](const MadeSample& sample) {
              return copy_question(kind, sample);
            });
          }};
}

/// Questions with the examples that --shots asks for, or as many as fit.
TaskItems classification_items(const TaskInput& input, const std::string& name,
                               ClassificationSet read) {
  const auto set = std::make_shared<const ClassificationSet>(std::move(read));
  const int64_t shots = std::max<int64_t>(0, input.shots);
  const auto order = std::make_shared<const std::vector<int64_t>>(
      balanced_order(set->test, std::ssize(set->labels), input.seed));
  TaskInput one = {.tokenizer = input.tokenizer,
                   .limit = shots > 0 && input.limit == 0 ? kMadeQuestions : input.limit,
                   .seed = input.seed,
                   .lengths = input.lengths,
                   .depths = input.depths};
  if (shots > 0) one.lengths = {kMadeLengths[0]};  // of no effect: the shots say how long it is
  return by_length(one, name, [set, order, shots](const MadeSample& sample) {
    const int64_t test = (*order)[static_cast<size_t>(sample.number % std::ssize(*order))];
    return classification_question(*set, test, shots, sample);
  });
}

struct ClassificationTask {
  std::string name;
  int64_t labels;
  std::string_view folder;
  std::function<ClassificationSet(const fs::path&)> read;
};

Task classification_task(const ClassificationTask& task) {
  return {.name = task.name,
          .title = fmt::format("HELMET ICL: {}, {} labels by examples", task.name.substr(4),
                               task.labels),
          .kind = TaskKind::generate,
          .chance = 1.0 / static_cast<double>(task.labels),
          .metrics = {make_answer_metric({.name = "exact_match", .normalise = true})},
          .stop = {"\n"},
          .max_tokens = kClassificationAnswerTokens,
          .items = [task](const TaskInput& input) {
            return classification_items(
                input, task.name,
                task.read(
                    find_data(input, task.name, {"icl/" + std::string(task.folder), task.folder})));
          }};
}

std::vector<ClassificationTask> classification_tasks() {
  return {{"icl_trec_coarse", 6, "trec",
           [](const fs::path& folder) { return read_trec(folder, TrecLabels::coarse); }},
          {"icl_trec_fine", 50, "trec",
           [](const fs::path& folder) { return read_trec(folder, TrecLabels::fine); }},
          {"icl_banking77", 77, "banking77", read_banking77},
          {"icl_clinc150", 151, "clinc150", read_clinc150}};
}

}  // namespace

std::shared_ptr<const Prose> background_prose(const TaskInput& input) {
  if (!input.background.empty()) return std::make_shared<const Prose>(read_prose(input.background));
  const fs::path essays = input.data / "text/paul_graham_essays";
  if (!input.data.empty() && is_folder(essays))
    return std::make_shared<const Prose>(read_prose(essays));
  return {&built_in_prose(), [](const Prose*) {}};
}

std::vector<Task> made_tasks() {
  std::vector<Task> tasks;
  for (const NeedleTask& task : needle_tasks()) tasks.push_back(needle_task(task));
  tasks.push_back(counting_task(
      "ruler_vt", "RULER: variables that hold a value", kVariableAnswerTokens,
      [](const MadeSample& sample) { return variable_question(VariableTracking{}, sample); }));
  tasks.push_back(counting_task("ruler_cwe", "RULER: the ten common words of a list",
                                kCommonAnswerTokens, common_words_question));
  tasks.push_back(counting_task("ruler_fwe", "RULER: the three frequent words of a coded text",
                                kFrequentAnswerTokens, frequent_words_question));
  tasks.push_back(document_task(DocumentPrompt::ruler));
  tasks.push_back(document_task(DocumentPrompt::helmet));
  for (const int64_t needles : {2, 4, 6}) tasks.push_back(multi_needle_task(needles));
  tasks.push_back(key_value_task());
  for (const int64_t pairs : {75, 140}) tasks.push_back(key_value_file_task(pairs));
  for (int number = 1; number <= 5; ++number) tasks.push_back(babilong_task(number));
  for (const CopyKind kind : {CopyKind::copy, CopyKind::induction})
    tasks.push_back(copy_task(kind));
  for (const ClassificationTask& task : classification_tasks())
    tasks.push_back(classification_task(task));
  return tasks;
}

}  // namespace fovea
