// The list of made tasks: what each of them makes from its input.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made_tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "fovea/base/files.h"
#include "tests/support/expect_error.h"
#include "tests/support/made_questions.h"
#include "tests/support/temporary_folder.h"

namespace fovea::made_tasks_test {
namespace {

using namespace fovea::testing;
using ::testing::HasSubstr;

const Task& task_of(const std::vector<Task>& tasks, std::string_view name) {
  for (const Task& task : tasks) {
    if (task.name == name) return task;
  }
  throw std::out_of_range(std::string(name));
}

bool needs_data(const Task& task) {
  for (const char* start : {"ruler_qa", "rag", "kv_retrieval", "babilong", "icl_"}) {
    if (task.name.starts_with(start)) return true;
  }
  return false;
}

/// A small folder of data for every task that needs one.
class Data {
 public:
  Data() {
    for (const char* sub : {"longcontext", "babi", "icl/trec", "icl/banking77", "icl/clinc150"})
      std::filesystem::create_directories(folder_ / sub);
    std::string questions, stories;
    for (int k = 0; k < 20; ++k)
      questions += fmt::format(
          R"({{"question": "q{0}", "answers": ["object{0}x"], "ctxs": [{{"title": "t", "text": "here is object{0}x"}}]}})"
          "\n",
          k);
    write_file(folder_ / "longcontext/nq_open_oracle.jsonl", questions);
    for (const char* pairs : {"75", "140"})
      write_file(folder_ / fmt::format("longcontext/kv_retrieval_{}_keys.jsonl", pairs),
                 R"({"ordered_kv_records": [["a", "1"], ["b", "2"]], "key": "b", "value": "2"})");
    for (int task = 1; task <= 5; ++task) {
      for (const char* split : {"train", "test"})
        write_file(folder_ / fmt::format("babi/qa{}_x_{}.txt", task, split),
                   fmt::format("1 Fred went there.\n2 What now?\t{0}\t1\n3 And now?\t{0}\t1\n",
                               task == 5 ? "milk" : "office"));
    }
    for (const char* split : {"train", "test"}) {
      write_file(folder_ / fmt::format("icl/trec/TREC.{}.label", split),
                 "NUM:date When ?\nLOC:city Where ?\n");
      write_file(folder_ / fmt::format("icl/banking77/{}.csv", split), "text,category\na,x\nb,y\n");
    }
    write_file(folder_ / "icl/clinc150/data_full.json",
               R"({"train": [["a", "x"]], "oos_train": [["b", "oos"]], "val": [["c", "x"]],)"
               R"( "oos_val": [["d", "oos"]]})");
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

TEST(MadeTasks, HaveDifferentNamesAndSayHowTheyAreScored) {
  std::set<std::string> names;
  for (const Task& task : made_tasks()) {
    EXPECT_TRUE(names.insert(task.name).second) << task.name;
    EXPECT_FALSE(task.title.empty()) << task.name;
    EXPECT_EQ(task.kind == TaskKind::generate, !task.metrics.empty()) << task.name;
    EXPECT_EQ(task.kind == TaskKind::generate, task.max_tokens > 0) << task.name;
  }
  EXPECT_GE(names.size(), 30u);
}

TEST(MadeTasks, MakeTheSameQuestionFromTheSameInputAndNoLongerThanAsked) {
  const Data data;
  const TaskInput input{
      .tokenizer = *byte_tokenizer(), .data = data.path(), .limit = 4, .lengths = {3000, 9000}};
  for (const Task& task : made_tasks()) {
    const TaskItems first = task.items(input), second = task.items(input);
    ASSERT_EQ(first.size, task.name.starts_with("kv_retrieval") ? 1 : 4) << task.name;
    for (int64_t n = 0; n < first.size; ++n) {
      const TaskItem item = first.make(n);
      EXPECT_EQ(item.context, second.make(n).context) << task.name;
      EXPECT_EQ(item.index, n) << task.name;
      if (!item.axes.contains("length")) continue;
      EXPECT_EQ(item.axes.at("length"), n % 2 == 0 ? 3000.0 : 9000.0) << task.name;
      EXPECT_LE(count_tokens(*byte_tokenizer(), item.context) + task.max_tokens,
                item.axes.at("length"))
          << task.name;
    }
  }
}

TEST(MadeTasks, ARightAnswerScoresOneAndAWrongOneNothing) {
  const Data data;
  const TaskInput input{
      .tokenizer = *byte_tokenizer(), .data = data.path(), .limit = 3, .lengths = {4000}};
  for (const Task& task : made_tasks()) {
    const TaskItem item = task.items(input).make(0);
    if (task.kind != TaskKind::generate) continue;
    std::string answer;
    for (const std::string& reference : item.references) answer += " " + reference;
    for (const AnswerMetric& metric : task.metrics) {
      EXPECT_EQ(metric.score(item, answer), 1.0) << task.name << answer;
      EXPECT_EQ(metric.score(item, " nothing of it"), 0.0) << task.name;
    }
  }
}

TEST(MadeTasks, SeveralAnswersScoreTheirShare) {
  const std::vector<Task> tasks = made_tasks();
  const Task& task = task_of(tasks, "niah_multivalue");
  const TaskItem item =
      task.items({.tokenizer = *byte_tokenizer(), .limit = 1, .lengths = {3000}}).make(0);
  EXPECT_EQ(task.metrics.front().score(item, item.references[0] + ", " + item.references[2]), 0.5);
}

TEST(MadeTasks, TheFirstNumberIsTheAnswerOfMultiNeedle) {
  const std::vector<Task> tasks = made_tasks();
  const AnswerMetric& metric = task_of(tasks, "multi_needle_4").metrics.front();
  const TaskItem item{.references = {"42"}};
  EXPECT_EQ(metric.score(item, " 42."), 1.0);
  EXPECT_EQ(metric.score(item, " 7 and 42"), 0.0);
  EXPECT_EQ(metric.score(item, " 421"), 0.0);
  EXPECT_EQ(metric.score(item, " forty-two"), 0.0);
}

TEST(MadeTasks, ChanceIsOneOfTheLabels) {
  const std::vector<Task> tasks = made_tasks();
  EXPECT_DOUBLE_EQ(task_of(tasks, "icl_banking77").chance, 1.0 / 77.0);
  EXPECT_DOUBLE_EQ(task_of(tasks, "icl_clinc150").chance, 1.0 / 151.0);
  EXPECT_DOUBLE_EQ(task_of(tasks, "babilong_qa3").chance, 1.0 / 6.0);
}

TEST(MadeTasks, OwnLengthsHaveAHundredQuestionsEach) {
  const std::vector<Task> tasks = made_tasks();
  const TaskItems items = task_of(tasks, "niah_single_1").items({.tokenizer = *byte_tokenizer()});
  EXPECT_EQ(items.size, 300);
  EXPECT_EQ(items.make(2).axes.at("length"), 4096.0);
}

TEST(MadeTasks, EveryDepthAsksTheSameSamples) {
  const std::vector<Task> tasks = made_tasks();
  for (const char* name : {"niah_single_1", "multi_needle_2", "json_kv", "copy"}) {
    SCOPED_TRACE(name);
    const TaskItems items = task_of(tasks, name)
                                .items({.tokenizer = *byte_tokenizer(),
                                        .lengths = {1500, 2000},
                                        .depths = {0.0, 0.5, 1.0}});
    EXPECT_EQ(items.size, 2 * 102) << "a hundred at a length, and as many at each depth";
    for (const int64_t n : {0, 1, 2, 5, 6, 9}) {
      SCOPED_TRACE(n);
      const TaskItem item = items.make(n);
      EXPECT_EQ(item.axes.at("length"), n % 2 == 0 ? 1500.0 : 2000.0);
      EXPECT_EQ(item.axes.at("depth"), static_cast<double>(n / 2 % 3) / 2.0);
    }
  }
  const TaskItems needles =
      task_of(tasks, "niah_single_1")
          .items({.tokenizer = *byte_tokenizer(), .lengths = {1500}, .depths = {0.0, 1.0}});
  EXPECT_EQ(needles.make(0).references, needles.make(1).references);
  EXPECT_NE(needles.make(0).references, needles.make(2).references);
  EXPECT_NE(needles.make(0).context, needles.make(1).context);
}

TEST(MadeTasks, ShotsOfClassificationReplaceTheLength) {
  const Data data;
  const std::vector<Task> tasks = made_tasks();
  const TaskItems items = task_of(tasks, "icl_trec_coarse")
                              .items({.tokenizer = *byte_tokenizer(),
                                      .data = data.path(),
                                      .shots = 6,
                                      .lengths = {64, 128}});
  EXPECT_EQ(items.size, kMadeQuestions);
  const TaskItem item = items.make(1);
  EXPECT_EQ(item.axes, (std::map<std::string, double>{{"shots", 6.0}}));
  EXPECT_EQ(occurrences(item.context, "\nlabel: "), 6);
}

TEST(MadeTasks, HideThingsInTheTextOfTheUser) {
  const TemporaryFolder folder;
  write_file(folder / "own.txt", "Nobody expects these words here. They are mine.");
  const std::vector<Task> tasks = made_tasks();
  const TaskItem item = task_of(tasks, "niah_single_2")
                            .items({.tokenizer = *byte_tokenizer(),
                                    .limit = 1,
                                    .lengths = {1500},
                                    .background = folder / "own.txt"})
                            .make(0);
  EXPECT_THAT(item.context, HasSubstr("Nobody expects these words here."));
  EXPECT_EQ(item.context.find("village"), std::string::npos);
}

TEST(MadeTasks, EssaysOfTheDataComeBeforeTheBuiltInText) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "text/paul_graham_essays");
  write_file(folder / "text/paul_graham_essays/a.txt", "An essay begins like this.");
  EXPECT_EQ(background_prose({.tokenizer = *byte_tokenizer(), .data = folder.path()})->sentences[0],
            "An essay begins like this.");
  EXPECT_EQ(background_prose({.tokenizer = *byte_tokenizer()})->name, "built in");
}

TEST(MadeTasks, RefuseBadInputByName) {
  const Data data;
  for (const Task& task : made_tasks()) {
    if (needs_data(task)) {
      EXPECT_ERROR(InputError, task.items({.tokenizer = *byte_tokenizer()}), task.name, "--data");
      EXPECT_ERROR(InputError,
                   task.items({.tokenizer = *byte_tokenizer(), .data = data.path() / "icl/trec"}),
                   task.name.starts_with("babilong") ? "babilong" : task.name);
    } else {
      EXPECT_ERROR(ConfigError, task.items({.tokenizer = *byte_tokenizer(), .lengths = {0}}),
                   task.name, "length", "0");
      EXPECT_ERROR(ConfigError,
                   task.items({.tokenizer = *byte_tokenizer(), .lengths = {40}}).make(0), "40");
      EXPECT_ERROR(ConfigError, task.items({.tokenizer = *byte_tokenizer(), .limit = -1}),
                   task.name, "-1");
      EXPECT_ERROR(ConfigError,
                   task.items({.tokenizer = *byte_tokenizer(), .depths = {1.5}}).make(0), "depth",
                   "1.5");
    }
  }
  EXPECT_ERROR(
      ConfigError,
      task_of(made_tasks(), "ruler_fwe").items({.tokenizer = *byte_tokenizer(), .depths = {0.5}}),
      "ruler_fwe", "no depth", "0.5");
}

}  // namespace
}  // namespace fovea::made_tasks_test
