// Classification by examples (spec 9.6).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/classification.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "fovea/base/files.h"
#include "tests/support/expect_error.h"
#include "tests/support/made_questions.h"
#include "tests/support/temporary_folder.h"

namespace fovea::made_classification_test {
namespace {

using namespace fovea::testing;
using ::testing::ElementsAre;
using ::testing::StartsWith;

/// Five labels; training texts "t<label>-<k>", four of each; test texts "q<label>".
ClassificationSet small_set() {
  ClassificationSet set{.name = "small", .labels = {"a", "b", "c", "d", "e"}};
  for (int64_t label = 0; label < 5; ++label) {
    for (int k = 0; k < 4; ++k) set.train.push_back({fmt::format("t{}-{}", label, k), label});
    set.test.push_back({fmt::format("q{}", label), label});
  }
  return set;
}

struct Shown {
  std::string text;
  std::string number;
};

std::vector<Shown> shown(const std::string& context) {
  std::vector<Shown> examples;
  std::istringstream lines(context.substr(context.find("\n\n") + 2));
  std::string text, label;
  while (std::getline(lines, text)) {
    if (text.empty() || !std::getline(lines, label) || label == "label:") continue;
    examples.push_back({text, label.substr(7)});
  }
  return examples;
}

TEST(Classification, LabelsAreAPermutationThatTheExamplesTell) {
  const ClassificationSet set = small_set();
  const TaskItem item = classification_question(set, 2, 20, sample_of(1));
  const auto examples = shown(item.context);
  ASSERT_EQ(examples.size(), 20u);
  std::map<char, std::set<std::string>> numbers;
  std::set<std::string> all;
  for (const Shown& e : examples) {
    numbers[e.text[1]].insert(e.number);
    all.insert(e.number);
  }
  for (const auto& [label, of_label] : numbers) EXPECT_EQ(of_label.size(), 1u) << label;
  EXPECT_EQ(all, (std::set<std::string>{"0", "1", "2", "3", "4"}));
  EXPECT_THAT(item.references, ElementsAre(*numbers['2'].begin()));
  EXPECT_TRUE(item.context.ends_with("\n\nq2\nlabel:"));
  EXPECT_THAT(item.context,
              StartsWith("Use the provided mapping from the text to label to assign a label to the "
                         "text. Only output \"label: {label}\" and nothing else. \n\n"));
}

TEST(Classification, EveryRoundHasOneExampleOfEveryLabel) {
  const auto examples = shown(classification_question(small_set(), 0, 23, sample_of(1)).context);
  ASSERT_EQ(examples.size(), 23u);
  for (size_t round = 0; round < 4; ++round) {
    std::set<char> labels;
    for (size_t i = 0; i < 5; ++i) labels.insert(examples[5 * round + i].text[1]);
    EXPECT_EQ(labels.size(), 5u) << round;
  }
  std::set<std::string> texts;
  for (size_t i = 0; i < 20; ++i) texts.insert(examples[i].text);
  EXPECT_EQ(texts.size(), 20u) << "no text comes again before all have come";
}

TEST(Classification, TheMappingIsThatOfTheTextAndTheSeedAlone) {
  const ClassificationSet set = small_set();
  const auto ask = [&](int64_t test, int64_t number, uint64_t seed) {
    return classification_question(set, test, 10, sample_of(1, number, seed)).context;
  };
  EXPECT_EQ(ask(1, 0, 7), ask(1, 5, 7));
  EXPECT_NE(ask(1, 0, 7), ask(1, 0, 8));
  std::set<std::string> numbers;
  for (uint64_t seed = 0; seed < 40; ++seed)
    numbers.insert(classification_question(set, 3, 5, sample_of(1, 0, seed)).references.front());
  EXPECT_EQ(numbers.size(), 5u);
}

TEST(Classification, AsManyExamplesAsFitAndTheAxisSaysWhich) {
  const TaskItem fitted = classification_question(small_set(), 1, 0, sample_of(600));
  expect_full(fitted.context, 600, kClassificationAnswerTokens, 16);
  EXPECT_EQ(fitted.axes, (std::map<std::string, double>{{"length", 600.0}}));
  EXPECT_EQ(classification_question(small_set(), 1, 7, sample_of(600)).axes,
            (std::map<std::string, double>{{"shots", 7.0}}));
  EXPECT_ERROR(ConfigError, classification_question(small_set(), 1, 0, sample_of(60)), "icl_small",
               "60");
  EXPECT_ERROR(ConfigError, classification_question(small_set(), 1, -2, sample_of(60)), "-2");
}

TEST(Classification, TestTextsAreAskedInRoundsOfEveryLabelAndAllOfThemOnce) {
  std::vector<LabelledText> texts;
  for (int64_t k = 0; k < 30; ++k) texts.push_back({fmt::format("{}", k), k % 2 == 0 ? 0 : k % 3});
  const std::vector<int64_t> order = balanced_order(texts, 3, 1);
  EXPECT_EQ(order.size(), 30u);
  EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 30u);
  for (size_t round = 0; round < 5; ++round) {
    std::set<int64_t> labels;
    for (size_t i = 0; i < 3; ++i)
      labels.insert(texts[static_cast<size_t>(order[3 * round + i])].label);
    EXPECT_EQ(labels.size(), 3u);
  }
  EXPECT_EQ(order, balanced_order(texts, 3, 1));
  EXPECT_NE(order, balanced_order(texts, 3, 2));
}

TEST(ClassificationFiles, Banking77HasQuotedTextsOverSeveralLines) {
  const TemporaryFolder folder;
  write_file(folder / "train.csv",
             "text,category\nplain,card\n\"with, comma\nand \"\"quotes\"\"\",fee\n");
  write_file(folder / "test.csv", "text,category\nasked,fee\n");
  const ClassificationSet set = read_banking77(folder.path());
  EXPECT_THAT(set.labels, ElementsAre("card", "fee"));
  EXPECT_EQ(set.train[1].text, "with, comma\nand \"quotes\"");
  EXPECT_EQ(set.test[0].label, 1);
  write_file(folder / "test.csv", "text,category\nasked,fee\nasked,loan\n");
  EXPECT_ERROR(InputError, read_banking77(folder.path()), "test.csv:3", "loan");
  write_file(folder / "test.csv", "text,label\nasked,fee\n");
  EXPECT_ERROR(InputError, read_banking77(folder.path()), "test.csv:2", "category");
}

TEST(ClassificationFiles, Clinc150TakesTheValidationAndTheOutOfScopeTexts) {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& content) {
    write_file(folder / "data_full.json", content);
    return read_clinc150(folder.path());
  };
  const ClassificationSet set =
      read(R"({"train": [["t1", "pay"], ["t2", "tip"]], "oos_train": [["t3", "oos"]],)"
           R"( "val": [["v1", "tip"]], "oos_val": [["v2", "oos"]], "test": [["x", "pay"]]})");
  EXPECT_THAT(set.labels, ElementsAre("oos", "pay", "tip"));
  ASSERT_EQ(set.test.size(), 2u);
  EXPECT_EQ(set.test[0].text, "v1");
  EXPECT_EQ(set.test[0].label, 2);
  EXPECT_ERROR(InputError, read("[]"), "data_full.json", "array");
  EXPECT_ERROR(InputError, read(R"({"train": []})"), "oos_train");
  EXPECT_ERROR(InputError, read(R"({"train": [["a", "b"], ["c"]]})"), "train entry 2");
}

TEST(ClassificationFiles, TrecHasCoarseAndFineLabels) {
  const TemporaryFolder folder;
  write_file(folder / "TREC.train.label",
             "NUM:dist How far ?\nLOC:city Where ?\r\nNUM:date When ?");
  write_file(folder / "TREC.test.label", "NUM:date Which year ?\n");
  const ClassificationSet coarse = read_trec(folder.path(), TrecLabels::coarse),
                          fine = read_trec(folder.path(), TrecLabels::fine);
  EXPECT_THAT(coarse.labels, ElementsAre("LOC", "NUM"));
  EXPECT_THAT(fine.labels, ElementsAre("LOC:city", "NUM:date", "NUM:dist"));
  EXPECT_EQ(fine.test[0].text, "Which year ?");
  EXPECT_EQ(fine.train[1].text, "Where ?");
  write_file(folder / "TREC.test.label", "NUM:date Which year ?\nno label here\n");
  EXPECT_ERROR(InputError, read_trec(folder.path(), TrecLabels::fine), "TREC.test.label:2",
               "no label here");
  EXPECT_ERROR(InputError, read_trec(folder / "none", TrecLabels::fine), "TREC.train.label");
}

}  // namespace
}  // namespace fovea::made_classification_test
