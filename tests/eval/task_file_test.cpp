// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/task_file.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "fovea/base/files.h"
#include "fovea/eval/task_list.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::task_file_test {
namespace {

class Tasks : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    make_folders((folder_ / name).parent_path());
    write_file(folder_ / name, text);
  }
  TaskInput input(int64_t shots = -1) const {
    return {.tokenizer = *byte_tokenizer(), .data = folder_.path(), .shots = shots};
  }
  /// The first question of a known task over a file with one record.
  TaskItem first(const std::string& task, const std::string& file, const std::string& record) {
    write(file, record + "\n");
    return find_task(task).items(input()).make(0);
  }
  TaskItems of_file(const std::string& yaml) {
    return make_task(parse_task_file(yaml, "mine.yaml")).items(input());
  }
  testing::TemporaryFolder folder_;
};

using Texts = std::vector<std::string>;

// Both layouts of a data set, and the prompt of spec 9.2 that both must give.
struct Layout {
  std::string task, file, record, context;
  Texts choices;
  int64_t gold;
};

TEST_F(Tasks, PromptsAndEndingsAreThoseOfTheSpecificationInEveryLayout) {
  const std::vector<Layout> layouts{
      {"arc_easy",
       "arc_easy.jsonl",
       R"({"query": "Question: Why?", "choices": ["x", "y"], "gold": 1})",
       "Question: Why?\nAnswer:",
       {" x", " y"},
       1},
      {"arc_challenge",
       "arc_challenge.jsonl",
       R"({"question": "Why?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"})",
       "Question: Why?\nAnswer:",
       {" x", " y"},
       1},
      {"boolq",
       "boolq.jsonl",
       R"({"query": "Passage: P.\nQuestion: is it?", "choices": ["no", "yes"], "gold": 1})",
       "P.\nQuestion: is it?\nAnswer:",
       {" no", " yes"},
       1},
      {"boolq",
       "boolq.jsonl",
       R"({"passage": "P.", "question": "is it", "answer": true})",
       "P.\nQuestion: is it?\nAnswer:",
       {" no", " yes"},
       1},
      {"boolq",
       "boolq.jsonl",
       R"({"passage": "P.", "question": "is it", "label": 0})",
       "P.\nQuestion: is it?\nAnswer:",
       {" no", " yes"},
       0},
      {"piqa",
       "piqa.jsonl",
       R"({"query": "Question: G\n", "choices": ["x", "y"], "gold": 0})",
       "Question: G\nAnswer:",
       {" x", " y"},
       0},
      {"piqa",
       "piqa.jsonl",
       R"({"goal": "G", "sol1": "x", "sol2": "y", "label": 1})",
       "Question: G\nAnswer:",
       {" x", " y"},
       1},
      {"siqa",
       "siqa.jsonl",
       R"({"context": "C.", "question": "Q?", "options": ["x", "y", "z"], "answer": "z"})",
       "Q: C. Q?\nA:",
       {" x", " y", " z"},
       2},
      {"siqa",
       "siqa.jsonl",
       R"({"context": "C.", "question": "Q?", "answerA": "x", "answerB": "y", "answerC": "z", "label": "3"})",
       "Q: C. Q?\nA:",
       {" x", " y", " z"},
       2},
      {"openbookqa",
       "openbookqa.jsonl",
       R"({"question_stem": "S", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B"})",
       "S",
       {" x", " y"},
       1},
      {"hellaswag",
       "hellaswag.jsonl",
       R"({"activity_label": "Baking", "ctx_a": "A [title] one  two [x].", "ctx_b": "a MAN", "endings": [" e [title] f", "g"], "label": "1"})",
       "Baking: A. one two . A man",
       {" e. f", " g"},
       1},
      {"hellaswag",
       "hellaswag.jsonl",
       R"({"ctx": "Baking: A man", "endings": ["e", "g"], "label": 0})",
       "Baking: A man",
       {" e", " g"},
       0},
      {"commonsenseqa",
       "commonsenseqa.jsonl",
       R"({"question": " Q?", "choices": {"text": ["a", "b", "c", "d", "e"]}, "answerKey": "D"})",
       "Question: Q?\nA. a\nB. b\nC. c\nD. d\nE. e\nAnswer:",
       {" A", " B", " C", " D", " E"},
       3},
  };
  for (const Layout& layout : layouts) {
    const TaskItem item = first(layout.task, layout.file, layout.record);
    EXPECT_EQ(item.context, layout.context) << layout.record;
    EXPECT_EQ(item.choices, layout.choices) << layout.record;
    EXPECT_EQ(item.gold, layout.gold) << layout.record;
    EXPECT_TRUE(item.contexts.empty());
  }
}

TEST_F(Tasks, WinograndePutsOneEndingBehindTwoContexts) {
  for (
      const std::string record :
      {R"({"context_options": ["Ann saw Bo, so Ann", "Ann saw Bo, so Bo"], "continuation": "ran.", "gold": 1})",
       R"({"sentence": "Ann saw Bo, so _ ran.", "option1": "Ann", "option2": "Bo", "answer": "2"})"}) {
    const TaskItem item = first("winogrande", "winogrande.jsonl", record);
    EXPECT_EQ(item.contexts, (Texts{"Ann saw Bo, so Ann", "Ann saw Bo, so Bo"}));
    EXPECT_EQ(item.choices, (Texts{" ran.", " ran."}));
    EXPECT_EQ(item.gold, 1);
  }
}

TEST_F(Tasks, LambadaAsksForTheLastWordBehindASpace) {
  const TaskItem item = first("lambada", "lambada.jsonl", R"({"text": "He said  \"no\" to Ann"})");
  EXPECT_EQ(item.context, "He said  \"no\" to");
  EXPECT_EQ(item.choices, (Texts{" Ann"}));
}

TEST_F(Tasks, MmluShowsTheFirstFiveOfItsSubjectInOrder) {
  std::string shots;
  for (const std::string subject : {"old_law", "new_law"}) {
    for (int n = 0; n < 6; ++n)
      shots += fmt::format(
          R"({{"subject": "{}", "question": "{}{}", "choices": ["p", "q", "r", "s"], "answer": {}}})"
          "\n",
          subject, subject[0], n, n % 4);
  }
  write("mmlu_dev.jsonl", shots);
  const TaskItem item = first(
      "mmlu", "mmlu_test.jsonl",
      R"({"subject": "new_law", "question": " Last? ", "choices": ["p", "q", "r", "s"], "answer": 2})");
  std::string expected =
      "The following are multiple choice questions (with answers) about new law.\n\n";
  const std::string letters = "ABCDABCD";
  for (int n = 0; n < 5; ++n)
    expected += fmt::format("n{}\nA. p\nB. q\nC. r\nD. s\nAnswer: {}\n\n", n, letters[n]);
  EXPECT_EQ(item.context, expected + "Last?\nA. p\nB. q\nC. r\nD. s\nAnswer:");
  EXPECT_EQ(item.choices, (Texts{" A", " B", " C", " D"}));
  EXPECT_EQ(item.group, "new law");
}

TEST_F(Tasks, TruthfulqaAsksBehindItsPrimerAndFindsTheTrueAnswer) {
  const TaskItem item =
      first("truthfulqa_mc1", "truthfulqa_mc.json",
            R"([{"question": "Why?", "mc1_targets": {"Because": 0, "Nobody knows": 1}}])");
  EXPECT_TRUE(
      item.context.starts_with("Q: What is human life expectancy in the United States?\n"
                               "A: Human life expectancy in the United States is 78 years."
                               "\n\nQ: Who was president"));
  EXPECT_TRUE(item.context.ends_with("held in Barcelona, Spain.\n\nQ: Why?\nA:"));
  EXPECT_EQ(item.choices, (Texts{" Because", " Nobody knows"}));
  EXPECT_EQ(item.gold, 1);
}

TEST_F(Tasks, TruthfulqaLabelsSeveralTrueAnswers) {
  const TaskItem item = first(
      "truthfulqa_mc2", "truthfulqa_mc.json",
      R"([{"question": "Why?", "mc2_targets": {"No": 0, "Perhaps": 1, "Because": 0, "Yes": 1}}])");
  EXPECT_TRUE(item.context.ends_with("\n\nQ: Why?\nA:"));
  EXPECT_EQ(item.choices, (Texts{" No", " Perhaps", " Because", " Yes"}));
  EXPECT_EQ(item.labels, (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(item.gold, 1);
}

TEST_F(Tasks, LabelsOfChoicesAreOnesAndZerosAndOneIsTrue) {
  const Task task = make_task(parse_task_file(
      "name: t\nkind: multiple_true\ndata: d.jsonl\ncontext: '{{q}}'\nchoices: c\nlabels: l\n",
      "t"));
  write("d.jsonl", R"({"q": "Q", "c": ["a", "b"], "l": [true, false]})");
  EXPECT_EQ(task.items(input()).make(0).labels, (std::vector<bool>{true, false}));
  for (const char* labels : {"[0, 0]", "[1]", "[1, 0, 0]", "[1, 2]", "[1, \"0\"]", "1", "[]"}) {
    write("d.jsonl", fmt::format(R"({{"q": "Q", "c": ["a", "b"], "l": {}}})", labels));
    EXPECT_ERROR(InputError, task.items(input()), "d.jsonl:1",
                 "'labels' to give 1 or 0 for each of 2 choices");
  }
  EXPECT_ERROR(
      ConfigError,
      parse_task_file("name: t\nkind: multiple_true\ndata: d\ncontext: q\nchoices: c\n", "t"),
      "needs the key 'labels'");
  EXPECT_ERROR(
      ConfigError,
      parse_task_file("name: t\ndata: d\ncontext: q\nchoices: c\ngold: g\nlabels: l\n", "t"),
      "has no use for the key 'labels'");
}

TEST_F(Tasks, ChainsOfThoughtAreEightAndOneNewlineApartFromTheirAnswer) {
  const TaskItem item = first("gsm8k_cot", "gsm8k_test.jsonl",
                              R"({"question": "2 + 2?", "answer": "It is.\n#### 4"})");
  EXPECT_TRUE(item.context.starts_with("Q: There are 15 trees in the grove."));
  EXPECT_NE(item.context.find("plant today?\nA: There are 15 trees originally."),
            std::string::npos);
  EXPECT_TRUE(item.context.ends_with("The answer is 8.\n\nQ: 2 + 2?\nA:"));
  EXPECT_EQ(item.references, (Texts{"4"}));
  int answers = 0;
  for (size_t at = 0; (at = item.context.find("The answer is", at)) != std::string::npos; ++at)
    ++answers;
  EXPECT_EQ(answers, 8);
}

TEST_F(Tasks, DrawnShotsAreSeededDistinctAndNeverTheQuestionItself) {
  std::string records;
  for (int n = 0; n < 12; ++n) records += fmt::format("{{\"q\": \"q{}\", \"a\": \"a{}\"}}\n", n, n);
  write("d.jsonl", records);
  const Task task = make_task(
      parse_task_file("name: t\nkind: generate\ndata: d.jsonl\ncontext: '{{q}}'\nreferences: a\n"
                      "shots: {count: 5, separator: '|'}\n",
                      "t"));
  std::set<std::string> prompts;
  for (int64_t n = 0; n < 12; ++n) {
    const TaskItem item = task.items(input()).make(n);
    EXPECT_EQ(item.context, task.items(input()).make(n).context);
    EXPECT_TRUE(item.context.ends_with(fmt::format("|q{}", n)));
    EXPECT_EQ(item.context.find(fmt::format("q{} a{}|", n, n)), std::string::npos);
    std::set<std::string> shots;
    for (int64_t k = 0; k < 12; ++k) {
      const std::string shot = fmt::format("q{} a{}|", k, k);
      if (item.context.find(shot) != std::string::npos) shots.insert(shot);
    }
    EXPECT_EQ(shots.size(), 5u);
    prompts.insert(item.context.substr(0, item.context.rfind('|')));
  }
  EXPECT_GT(prompts.size(), 6u);
  EXPECT_EQ(task.items(input(0)).make(3).context, "q3");
  EXPECT_ERROR(InputError, task.items(input(12)).make(0), "at least 12", "got 11", "--shots");
}

TEST_F(Tasks, ATaskOfOnesOwnReadsItsDataBesideItsFile) {
  write("mine/data.jsonl", "{\"q\": \"Q\", \"c\": [\"x\", \"y\"], \"g\": 1, \"kind\": \"k\"}\n");
  write(
      "mine/mine.yaml",
      "name: mine\ndata: data.jsonl\ncontext: '{{q}}:'\nchoices: c\ngold: g\ngroup: '{{kind}}'\n");
  const Task task = find_task((folder_ / "mine/mine.yaml").string());
  const TaskItems items = task.items({.tokenizer = *byte_tokenizer(), .data = {}});
  ASSERT_EQ(items.size, 1);
  EXPECT_EQ(items.make(0).context, "Q:");
  EXPECT_EQ(items.make(0).group, "k");
}

constexpr const char* kPlain = "name: t\ndata: d.jsonl\ncontext: '{{q}}'\nchoices: c\ngold: g\n";

TEST_F(Tasks, RecordsThatDoNotFitAreRefusedWithFileAndLine) {
  write("d.jsonl", "{\"q\": 1, \"c\": [1, 2], \"g\": 0}\n{\"q\": 1, \"c\": [1, 2]}\n");
  EXPECT_ERROR(InputError, of_file(kPlain), "d.jsonl:2", "q, c, g", "got q, c");
  write("d.jsonl", "{\"q\": 1, \"c\": [1, 2], \"g\": 2}\n");
  EXPECT_ERROR(InputError, of_file(kPlain), "d.jsonl:1", "from 0 to 1", "got 2");
  write("d.jsonl", "{\"q\": 1, \"c\": [1, 2], \"g\": \"three\"}\n");
  EXPECT_ERROR(InputError, of_file(kPlain), "d.jsonl:1", "text of a choice", "three");
  write("d.jsonl", "{\"q\": 1, \"c\": [1], \"g\": 0}\n");
  EXPECT_ERROR(InputError, of_file(kPlain), "d.jsonl:1", "at least two choices");
  write("d.jsonl", "{\"q\": 1, \"c\": 5, \"g\": 0}\n");
  EXPECT_ERROR(InputError, of_file(kPlain), "d.jsonl:1", "'choices'", "list", "5");
  EXPECT_ERROR(InputError,
               make_task(parse_task_file(kPlain, "t"))
                   .items({.tokenizer = *byte_tokenizer(), .data = "nowhere"}),
               "task t", "d.jsonl", "nowhere", "--data");
}

TEST_F(Tasks, FilesThatMakeNoTaskAreRefusedByKey) {
  const auto parse = [](const std::string& yaml) { return parse_task_file(yaml, "t.yaml"); };
  EXPECT_ERROR(ConfigError, parse("data: d\ncontext: x\nchoices: c\ngold: g\n"), "'name'");
  for (const char* name : {"../../victim", "'a\\b'", "\"a\\0b\"", "\"a\\nb\"", ".hidden"})
    EXPECT_ERROR(ConfigError, parse(fmt::format("name: {}\ndata: d\n", name)), "name of its log");
  EXPECT_ERROR(ConfigError, parse("data: d\nname: " + std::string(300, 'x')), "300 bytes");
  EXPECT_ERROR(ConfigError, parse("name: t\ndata: d\ncontext: x\ngold: g\n"), "'choices'");
  EXPECT_ERROR(ConfigError, parse(std::string(kPlain) + "chioces: c\n"), "t.yaml:6", "choices");
  EXPECT_ERROR(ConfigError, parse(std::string(kPlain) + "ending: x\n"), "no use", "'ending'");
  EXPECT_ERROR(ConfigError, parse(std::string(kPlain) + "stop: x\n"), "kind generate");
  EXPECT_ERROR(ConfigError, parse(std::string(kPlain) + "headline: f1\n"), "headline", "acc", "f1");
  EXPECT_ERROR(ConfigError, parse(std::string(kPlain) + "forms: [{context: x}]\n"), "both");
  EXPECT_ERROR(ConfigError,
               make_task(parse("name: t\ndata: d\ncontext: '{{q'\nchoices: c\ngold: g\n")),
               "t: context", "line 1");
  EXPECT_ERROR(ConfigError,
               make_task(parse("name: t\nkind: generate\ndata: d\ncontext: x\n"
                               "references: r\nmetrics: [{pattern: '('}]\n")),
               "regular expression", "'('");
}

TEST_F(Tasks, AnUnknownNameGetsTheNearestOne) {
  EXPECT_ERROR(ConfigError, find_task("helaswag"), "'helaswag'", "did you mean 'hellaswag'",
               "arc_easy");
  EXPECT_ERROR(InputError, find_task("none.yaml"), "none.yaml");
}

TEST(KnownTasks, HaveDistinctNamesAndATitle) {
  std::set<std::string> names;
  for (const Task& task : known_tasks()) {
    EXPECT_TRUE(names.insert(task.name).second) << task.name;
    EXPECT_FALSE(task.title.empty()) << task.name;
  }
  for (const char* name : {"arc_easy", "arc_challenge", "boolq", "hellaswag", "lambada", "piqa",
                           "winogrande", "siqa", "openbookqa", "mmlu", "truthfulqa_mc1",
                           "truthfulqa_mc2", "commonsenseqa", "gsm8k", "gsm8k_cot"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(Hellaswag, IsCleanedAsTheHarnessDoes) {
  EXPECT_EQ(cleaned_hellaswag(" a [title] b "), "a. b");
  EXPECT_EQ(cleaned_hellaswag("[header] How to x [title] y [step] z."), " How to x. y z.");
  EXPECT_EQ(cleaned_hellaswag("a [b\nc] d"), "a [b\nc] d");  // `.` stays on its line
  EXPECT_EQ(cleaned_hellaswag("a    b"), "a  b");            // one pass
}

}  // namespace
}  // namespace fovea::task_file_test
