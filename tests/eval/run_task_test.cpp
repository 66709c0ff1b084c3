// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/run_task.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "fovea/base/files.h"
#include "fovea/eval/item_log.h"
#include "fovea/eval/scoring.h"
#include "fovea/infer/generate.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace fovea::run_task_test {
namespace {

using Texts = std::vector<std::string>;

ModelConfig wide_config() {
  ModelConfig config = testing::tiny_config();
  config.context = 64;
  return config.resolved(config.vocab_size);
}

/// Log-likelihood of the bytes of `ending` behind the begin mark and `context`.
double by_hand(const Transformer& model, const std::string& context, const std::string& ending) {
  std::vector<int64_t> inputs{byte_tokenizer()->bos()};
  for (const char c : context + ending) inputs.push_back(static_cast<uint8_t>(c));
  const at::NoGradGuard no_grad;
  const at::Tensor logits =
      model.logits(model.hidden({.tokens_bt = at::tensor(inputs).unsqueeze(0)}))[0];
  const at::Tensor log_p = at::log_softmax(logits.to(at::kDouble), -1);
  double sum = 0.0;
  for (size_t i = context.size(); i < context.size() + ending.size(); ++i)
    sum += log_p[static_cast<int64_t>(i)][inputs[i + 1]].item<double>();
  return sum;
}

class RunTask : public ::testing::Test {
 protected:
  TaskScore run(const Task& task, const TaskRunOptions& options = {}) const {
    return run_task(model_, *byte_tokenizer(), task, {.tokenizer = *byte_tokenizer(), .data = {}},
                    options);
  }
  static Task task_of(TaskKind kind, std::vector<TaskItem> items) {
    return {.name = "t", .title = "T", .kind = kind, .items = [items](const TaskInput&) {
              return items_of(items);
            }};
  }
  /// Questions of four choices of unequal length, in characters and in bytes.
  static std::vector<TaskItem> choices() {
    std::vector<TaskItem> items;
    for (int64_t n = 0; n < 9; ++n) {
      TaskItem item{.context = fmt::format("Question {}:", n * n * 7),
                    .choices = {" yes", " d\u00e9j\u00e0 vu encore", " no never", " \u00e9"},
                    .gold = n % 4};
      item.group = n < 4 ? "early" : "late";
      items.push_back(std::move(item));
    }
    return items;
  }
  const Transformer model_{wide_config(), 5};
  testing::TemporaryFolder folder_;
};

TEST_F(RunTask, ChoicesAreTakenByTheSumByCharactersAndByBytes) {
  const std::vector<TaskItem> items = choices();
  const std::vector<double> characters{3, 14, 8, 1}, bytes{3, 16, 8, 2};
  double acc = 0, norm = 0, by_bytes = 0;
  for (const TaskItem& item : items) {
    std::vector<double> sums;
    for (const std::string& choice : item.choices)
      sums.push_back(by_hand(model_, item.context, choice));
    const auto best = [&](const std::vector<double>& lengths) {
      size_t k = 0;
      for (size_t i = 1; i < sums.size(); ++i)
        if (sums[i] / lengths[i] > sums[k] / lengths[k]) k = i;
      return static_cast<int64_t>(k) == item.gold;
    };
    acc += best({1, 1, 1, 1});
    norm += best(characters);
    by_bytes += best(bytes);
  }
  const TaskScore score = run(task_of(TaskKind::multiple_choice, items));
  EXPECT_EQ(score.items, 9);
  EXPECT_DOUBLE_EQ(score.metric("acc").value, acc / 9);
  EXPECT_DOUBLE_EQ(score.metric("acc_norm").value, norm / 9);
  EXPECT_DOUBLE_EQ(score.metric("acc_bytes").value, by_bytes / 9);
  EXPECT_EQ(score.headline, "acc");
  EXPECT_DOUBLE_EQ(score.chance, 0.25);
  // sd / sqrt(n) with n - 1, of nine zeros and ones.
  const double p = acc / 9;
  EXPECT_NEAR(score.metric("acc").error, std::sqrt(p * (1 - p) / 8), 1e-12);
  ASSERT_EQ(score.groups.size(), 2u);
  EXPECT_EQ(score.groups[0].group, "early");
  EXPECT_EQ(score.groups[0].metrics[0].items, 4);
}

TEST_F(RunTask, SeveralTrueChoicesCountByTheirShareOfTheProbability) {
  std::vector<TaskItem> items = choices();
  double expected = 0, chance = 0;
  for (size_t n = 0; n < items.size(); ++n) {
    TaskItem& item = items[n];
    item.labels = {n % 2 == 0, true, false, false};
    double of_true = 0, of_all = 0;
    for (size_t k = 0; k < item.choices.size(); ++k) {
      const double p = std::exp(by_hand(model_, item.context, item.choices[k]));
      of_all += p;
      of_true += item.labels[k] ? p : 0.0;
    }
    expected += of_true / of_all;
    chance += item.labels[0] ? 0.5 : 0.25;
  }
  const TaskScore score = run(task_of(TaskKind::multiple_true, items));
  ASSERT_EQ(score.metrics.size(), 1u);
  EXPECT_NEAR(score.metric("mc2").value, expected / 9, 1e-6);
  EXPECT_NEAR(score.chance, chance / 9, 1e-12);
}

TEST_F(RunTask, PartialScoringComparesOneEndingBehindItsContexts) {
  TaskItem item{.choices = {" ran.", " ran."},
                .contexts = {"Ann saw Bo, so Ann", "Ann saw Bo, so Bo"}};
  item.gold =
      by_hand(model_, item.contexts[0], " ran.") > by_hand(model_, item.contexts[1], " ran.") ? 0
                                                                                              : 1;
  TaskItem other = item;
  other.gold = 1 - item.gold;
  const TaskScore score = run(task_of(TaskKind::partial, {item, other, item}));
  EXPECT_DOUBLE_EQ(score.metric("acc").value, 2.0 / 3.0);
}

TEST_F(RunTask, PerplexityOfTheLastWordIsPerWordAndPerToken) {
  const TaskItem one{.context = "He said no to", .choices = {" Ann"}};
  const TaskItem two{.context = "She went", .choices = {" home"}};
  const double nll = -by_hand(model_, one.context, " Ann") - by_hand(model_, two.context, " home");
  const TaskScore score = run(task_of(TaskKind::last_word, {one, two}));
  EXPECT_NEAR(score.metric("perplexity").value, std::exp(nll / 2), 1e-3 * std::exp(nll / 2));
  EXPECT_NEAR(score.metric("token_perplexity").value, std::exp(nll / 9), 1e-2);
  EXPECT_EQ(score.metric("acc").value, 0.0);
}

TEST_F(RunTask, RollingScoresAreThoseOfTheTexts) {
  const std::string a = "Attention is a lens; it has a focus. " + std::string(60, 'x'), b = "short";
  const TaskScore score =
      run(task_of(TaskKind::rolling, {TaskItem{.context = a}, TaskItem{.context = b}}));
  const std::vector<ScoreDocument> documents{{"a", a}, {"b", b}};
  const ScoreTotals t = score_text(model_, *byte_tokenizer(), documents).total;
  EXPECT_NEAR(score.metric("word_perplexity").value / t.word_perplexity(), 1.0, 1e-4);
  EXPECT_NEAR(score.metric("byte_perplexity").value, t.byte_perplexity(), 1e-3);
  EXPECT_NEAR(score.metric("token_perplexity").value, t.token_perplexity(), 1e-3);
  EXPECT_NEAR(score.metric("bits_per_byte").value, t.bits_per_byte(), 1e-5);
}

TEST_F(RunTask, AnswersAreGreedyTextsUpToAStop) {
  const GenerateResult text = generate_text(model_, *byte_tokenizer(), "Once",
                                            {.sampling = {.temperature = 0.0}, .max_tokens = 20});
  // The second character of that text, whole.
  const auto begins = [&](size_t at) { return (text.text[at] & 0xC0) != 0x80; };
  size_t from = 1;
  while (from < text.text.size() && !begins(from)) ++from;
  ASSERT_LT(from, text.text.size());
  size_t to = from + 1;
  while (to < text.text.size() && !begins(to)) ++to;
  const std::string stop = text.text.substr(from, to - from);
  Task task = task_of(TaskKind::generate, {TaskItem{.context = "Once"}});
  task.max_tokens = 20;
  task.stop = {stop};
  std::string answer;
  task.metrics = {{"seen", [&](const TaskItem&, std::string_view written) {
                     answer = written;
                     return 0.5;
                   }}};
  EXPECT_EQ(run(task).metric("seen").value, 0.5);
  EXPECT_EQ(answer, text.text.substr(0, text.text.find(stop)));
}

TEST_F(RunTask, QuestionsThatCannotBeAskedAreCountedAndNoPartOfTheScore) {
  std::vector<TaskItem> items = choices();
  items[2].choices[1] = " ";
  items[5].choices[0] = " " + std::string(80, 'x');
  const TaskScore score = run(task_of(TaskKind::multiple_choice, items));
  EXPECT_EQ(score.items, 7);
  EXPECT_EQ(score.refused, 2);
  ASSERT_EQ(score.refusals.size(), 2u);
  EXPECT_NE(score.refusals[0].find("question 2: choice 1 has no text"), std::string::npos);
  EXPECT_NE(score.refusals[1].find("81 tokens"), std::string::npos);
  EXPECT_EQ(score.to_json()["refused"]["items"], 2);
  items.assign(1, items[2]);
  EXPECT_ERROR(InputError, run(task_of(TaskKind::multiple_choice, items)), "all 1 are refused",
               "no text");
}

TEST_F(RunTask, ContextsThatAreTooLongAreCounted) {
  std::vector<TaskItem> items = choices();
  items[4].context = std::string(90, 'a') + "Question:";
  const TaskScore score = run(task_of(TaskKind::multiple_choice, items));
  EXPECT_EQ(score.items, 9);
  EXPECT_EQ(score.contexts_cut, 1);
}

TEST_F(RunTask, ARunThatStoppedGoesOnAndEndsAsOneThatDidNot) {
  const Task task = task_of(TaskKind::multiple_choice, choices());
  const auto whole_log = folder_ / "whole/t.jsonl", log = folder_ / "results/t.jsonl";
  const TaskScore whole = run(task, {.log = whole_log});
  std::atomic<bool> stop{false};
  const auto stop_at_4 = [&](int64_t done, int64_t) { stop = done == 4; };
  EXPECT_ERROR(Interrupted, run(task, {.log = log, .progress = stop_at_4, .interrupt = &stop}),
               "4 of 9", "goes on");
  // A kill in the middle of a line: the last line is broken.
  const std::string text = read_file(log);
  write_file(log, text.substr(0, text.size() - 9));
  ASSERT_EQ(read_item_log(log).records.size(), 3u);
  int64_t first = -1;
  const TaskScore rest = run(task, {.log = log, .progress = [&](int64_t done, int64_t total) {
                                      if (first < 0) first = done;
                                      EXPECT_EQ(total, 9);
                                    }});
  EXPECT_EQ(first, 3);
  EXPECT_EQ(rest.asked, 6);
  EXPECT_EQ(rest.metric("acc").value, whole.metric("acc").value);
  EXPECT_EQ(rest.chance, whole.chance);
  const ItemLog a = read_item_log(whole_log), b = read_item_log(log);
  ASSERT_EQ(a.records.size(), 9u);
  ASSERT_EQ(b.records.size(), 9u);
  for (size_t n = 0; n < 9; ++n) {
    EXPECT_EQ(b.records[n].score.index, static_cast<int64_t>(n));
    EXPECT_EQ(a.records[n].question, b.records[n].question);
    EXPECT_EQ(a.records[n].score.values, b.records[n].score.values);
  }
  EXPECT_EQ(run(task, {.log = log}).asked, 0);
}

TEST_F(RunTask, ALogOfOtherQuestionsModelsOrSettingsIsRefused) {
  const auto log = folder_ / "t.jsonl";
  std::vector<TaskItem> items = choices();
  run(task_of(TaskKind::multiple_choice, items), {.log = log});
  items[3].context += "!";
  EXPECT_ERROR(InputError, run(task_of(TaskKind::multiple_choice, items), {.log = log}),
               "question 3", "--out");
  items = choices();
  EXPECT_ERROR(InputError,
               run(task_of(TaskKind::multiple_choice, items), {.context = 32, .log = log}),
               "settings", "--out");
  const Transformer other(wide_config(), 6);
  EXPECT_NE(model_fingerprint(other), model_fingerprint(model_));
  EXPECT_ERROR(InputError,
               run_task(other, *byte_tokenizer(), task_of(TaskKind::multiple_choice, items),
                        {.tokenizer = *byte_tokenizer(), .data = {}}, {.log = log}),
               "parameters", "--out");
  write_file(log, "{\"x\": 1}\n");
  EXPECT_ERROR(InputError, run(task_of(TaskKind::multiple_choice, items), {.log = log}),
               "t.jsonl:1");
}

TEST_F(RunTask, AForeignFileInThePlaceOfTheLogIsRefusedAndKeptWithAndWithoutALineEnd) {
  const testing::TemporaryFolder folder;
  for (const char* foreign : {"my notes", "my notes\n", "{\"fovea_task_log\":1,\"mine\":2}"}) {
    write_file(folder / "log.jsonl", foreign);
    EXPECT_THROW(run(task_of(TaskKind::multiple_choice, choices()), {.log = folder / "log.jsonl"}),
                 InputError)
        << foreign;
    EXPECT_EQ(read_file(folder / "log.jsonl"), foreign);
  }
}

TEST_F(RunTask, AHeaderThatAKillToreIsWrittenAnew) {
  const testing::TemporaryFolder folder;
  const Task task = task_of(TaskKind::multiple_choice, choices());
  run(task, {.log = folder / "log.jsonl"});
  const std::string whole = read_file(folder / "log.jsonl");
  write_file(folder / "log.jsonl", whole.substr(0, whole.find('\n') / 2));
  run(task, {.log = folder / "log.jsonl"});
  EXPECT_EQ(read_file(folder / "log.jsonl"), whole);
}

TEST_F(RunTask, CellsOfThePictureAreTheQuestionsOfOnePlace) {
  std::vector<TaskItem> items = choices();
  for (size_t n = 0; n < items.size(); ++n)
    items[n].axes = {{"length", n < 5 ? 1024.0 : 2048.0}, {"depth", n % 2 == 0 ? 0.0 : 1.0}};
  const TaskScore score = run(task_of(TaskKind::multiple_choice, items));
  ASSERT_EQ(score.cells.size(), 4u);
  int64_t sum = 0;
  for (const PartScore& cell : score.cells) sum += cell.metrics.front().items;
  EXPECT_EQ(sum, 9);
}

TEST(TaskScoreOf, ErrorsOfOneQuestionAreNoNumber) {
  TaskScore score;
  score.add_items({{.index = 0, .values = {{"acc", 1.0}}}});
  EXPECT_TRUE(std::isnan(score.metric("acc").error));
  EXPECT_TRUE(score.to_json()["metrics"]["acc"]["error"].is_null());
  EXPECT_THROW(score.metric("f1"), std::out_of_range);
}

}  // namespace
}  // namespace fovea::run_task_test
