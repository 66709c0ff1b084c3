// Questions on documents, and JSON objects of UUIDs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "fovea/base/files.h"
#include "fovea/eval/made/key_value.h"
#include "tests/support/expect_error.h"
#include "tests/support/made_questions.h"
#include "tests/support/temporary_folder.h"

namespace fovea::made_documents_test {
namespace {

using namespace fovea::testing;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Question k asks for "thing k"; only passage k holds it, but every third one also names thing 0.
QuestionSet small_set(int64_t count) {
  QuestionSet set;
  for (int64_t k = 0; k < count; ++k)
    set.questions.push_back({.question = fmt::format("what lies in box number {}", k),
                             .title = fmt::format("Box {}", k),
                             .passage = fmt::format("In this box lies object{}x.{}", k,
                                                    k % 3 == 1 ? " It lay beside object0x." : ""),
                             .answers = {fmt::format("object{}x", k), "no such thing"}});
  return set;
}

TEST(DocumentQuestion, HasTheRightDocumentAtTheDepthAmongOthersWithoutTheAnswer) {
  const QuestionSet set = small_set(60);
  for (const DocumentPrompt style : {DocumentPrompt::ruler, DocumentPrompt::helmet}) {
    for (const double depth : {0.0, 0.25, 1.0}) {
      MadeSample sample = sample_of(1800, 0);
      sample.depth = depth;
      const TaskItem item = document_question(set, style, sample);
      expect_full(item.context, 1800, kDocumentAnswerTokens, 90);
      EXPECT_EQ(occurrences(item.context, "object0x"), 1) << "no distractor holds the answer";
      const std::string mark = style == DocumentPrompt::ruler ? "\nBox " : "(Title: Box ";
      const int64_t documents = occurrences(item.context, mark);
      EXPECT_GT(documents, 8);
      const std::string before = item.context.substr(0, item.context.find(mark + "0"));
      EXPECT_EQ(occurrences(before, mark),
                std::llround(depth * static_cast<double>(documents - 1)));
    }
  }
}

TEST(DocumentQuestion, TakesAllDocumentsWhereTheyAreFewAndStartsAgainBehindTheLast) {
  const QuestionSet set = small_set(5);
  const TaskItem item = document_question(set, DocumentPrompt::ruler, sample_of(9000, 2));
  EXPECT_EQ(occurrences(item.context, "\nBox "), 5);
  EXPECT_EQ(item.references,
            document_question(set, DocumentPrompt::ruler, sample_of(9000, 7)).references);
}

TEST(DocumentQuestion, IsPutAsTheTwoSuitesPutIt) {
  const QuestionSet set = small_set(5);
  const std::string ruler =
      document_question(set, DocumentPrompt::ruler, sample_of(2000, 3)).context;
  EXPECT_THAT(ruler,
              StartsWith("Answer the question based on the given documents. Only give me the "
                         "answer and do not output any other words.\n\nThe following are "
                         "given documents.\n\nDocument 1:\nBox "));
  EXPECT_TRUE(ruler.ends_with("\n\nQuestion: what lies in box number 3 Answer:"));
  const std::string helmet =
      document_question(set, DocumentPrompt::helmet, sample_of(2000, 3)).context;
  EXPECT_THAT(helmet,
              StartsWith("Use the given documents to write a concise and short answer to "
                         "the question. Write your answer in the following format:\nAnswer: "
                         "[answer]\n\nDocument (Title: Box "));
  EXPECT_TRUE(helmet.ends_with("\n\nQuestion: what lies in box number 3\nAnswer:"));
}

TEST(DocumentQuestion, RefusesALengthThatTheRightDocumentExceeds) {
  EXPECT_ERROR(ConfigError, document_question(small_set(3), DocumentPrompt::helmet, sample_of(150)),
               "rag", "150");
}

class QuestionFile : public ::testing::Test {
 protected:
  QuestionSet read(const std::string& content) {
    write_file(folder_ / "q.jsonl", content);
    return read_questions(folder_ / "q.jsonl");
  }
  TemporaryFolder folder_;
  const std::string good_ =
      R"({"question": "who?", "answers": ["Ann"], "ctxs": [{"title": "no", "text": "nobody"}, )"
      R"({"title": "t", "text": "It was ann, indeed.", "isgold": true}]})"
      "\n";
};

TEST_F(QuestionFile, GivesTheGoldPassageAndLeavesOutThoseWithoutAnAnswer) {
  const QuestionSet set = read(
      good_ + R"({"question": "x", "answers": ["Bob"], "ctxs": [{"title": "t", "text": "Ann"}]})");
  ASSERT_EQ(set.questions.size(), 1u);
  EXPECT_EQ(set.left_out, 1);
  EXPECT_EQ(set.questions[0].passage, "It was ann, indeed.");
  EXPECT_EQ(set.questions[0].title, "t");
}

TEST_F(QuestionFile, ErrorsNameTheLine) {
  EXPECT_ERROR(InputError,
               read(good_ + R"({"question": "x", "answers": ["a"], "ctxs": [{"text": "a"}]})"),
               "q.jsonl:2", "title");
  EXPECT_ERROR(InputError, read(R"({"question": "x", "answers": ["a"]})"), "q.jsonl:1", "ctxs");
  EXPECT_ERROR(InputError,
               read(R"({"question": "x", "answers": [], "ctxs": [{"title": "t", "text": "a"}]})"),
               "q.jsonl:1", "answers");
  EXPECT_ERROR(InputError,
               read(R"({"question": 3, "answers": ["a"], "ctxs": [{"title": "t", "text": "a"}]})"),
               "q.jsonl:1", "question", "number");
  EXPECT_ERROR(InputError, read("{\n"), "q.jsonl:1");
  EXPECT_ERROR(InputError, read("\n"), "q.jsonl", "none");
}

/// The object of a JSON-KV prompt, read by a JSON parser.
nlohmann::ordered_json object_of(const std::string& context) {
  return nlohmann::ordered_json::parse(context.substr(0, context.find("\n\nExtract")));
}

TEST(KeyValue, TheAnswerIsTheValueOfTheKeyInTheObject) {
  for (int64_t number = 0; number < 12; ++number) {
    const TaskItem item = key_value_question(KeyValueTask{}, sample_of(4000, number));
    expect_full(item.context, 4000, kKeyValueAnswerTokens, 90);
    const auto object = object_of(item.context);
    const std::string key = between(item.context.substr(item.context.rfind("\nKey: ")),
                                    "Key: ", "\nCorresponding value:");
    EXPECT_EQ(object.at(key), item.references.front());
    EXPECT_EQ(occurrences(item.context, item.references.front()), 1);
    const double place = static_cast<double>(std::distance(object.begin(), object.find(key))) /
                         static_cast<double>(object.size() - 1);
    EXPECT_NEAR(place, item.axes.at("depth"), 0.02);
    EXPECT_NEAR(item.axes.at("depth"), static_cast<double>(number % 6) / 5.0, 1e-12);
  }
}

TEST(KeyValue, ShotsAreSolvedOnOtherKeysOfTheObject) {
  const TaskItem item = key_value_question(KeyValueTask{.pairs = 50, .shots = 2}, sample_of(1, 4));
  const auto object = object_of(item.context);
  EXPECT_EQ(object.size(), 50u);
  EXPECT_EQ(item.axes.at("pairs"), 50.0);
  EXPECT_EQ(item.axes.count("length"), 0u);
  EXPECT_EQ(occurrences(item.context, "\nCorresponding value:"), 3);
  const std::string demo = between(item.context, "below.\n\nKey: ", "\n\n");
  const std::string key = demo.substr(0, 36), value = demo.substr(demo.size() - 36);
  EXPECT_EQ(object.at(key), value);
  EXPECT_NE(value, item.references.front());
  EXPECT_EQ(demo, key + "\nCorresponding value: " + value);
  const TaskItem none = key_value_question(KeyValueTask{.pairs = 50, .shots = 0}, sample_of(1, 4));
  EXPECT_EQ(occurrences(none.context, "\nCorresponding value:"), 1);
}

TEST(KeyValue, RefusesFewerPairsThanQuestions) {
  EXPECT_ERROR(ConfigError, key_value_question(KeyValueTask{.pairs = 2}, sample_of(1000)),
               "2 shots", "2 pairs");
  EXPECT_ERROR(ConfigError, key_value_question(KeyValueTask{}, sample_of(300)), "json_kv", "300");
}

TEST(KeyValue, FilesGiveTheirPairsInOrderAndErrorsNameTheLine) {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& content) {
    write_file(folder / "kv.jsonl", content);
    return read_key_values(folder / "kv.jsonl");
  };
  const std::string good =
      R"({"ordered_kv_records": [["a", "1"], ["b", "2"], ["c", "3"]], "key": "b", "value": "2"})"
      "\n";
  const auto records = read(good);
  ASSERT_EQ(records.size(), 1u);
  const TaskItem item = key_value_question(records[0], 1, 9, 3);
  EXPECT_THAT(item.context,
              StartsWith("{\"a\": \"1\",\n \"b\": \"2\",\n \"c\": \"3\"}\n\nExtract "));
  EXPECT_TRUE(item.context.ends_with("\n\nKey: b\nCorresponding value:"));
  EXPECT_EQ(item.references.front(), "2");
  EXPECT_EQ(item.axes.at("depth"), 0.5);
  EXPECT_EQ(item.index, 9);
  EXPECT_ERROR(InputError, read(good + R"({"key": "b", "value": "2"})"), "kv.jsonl:2",
               "ordered_kv_records");
  EXPECT_ERROR(InputError, read(R"({"ordered_kv_records": [["a"]], "key": "a", "value": "1"})"),
               "kv.jsonl:1", "pairs");
  EXPECT_ERROR(InputError,
               read(R"({"ordered_kv_records": [["a", "1"]], "key": "b", "value": "1"})"),
               "kv.jsonl:1", "'b'");
  EXPECT_ERROR(
      InputError,
      read(R"({"ordered_kv_records": [["a", "1"], ["a", "1"]], "key": "a", "value": "1"})"),
      "kv.jsonl:1", "two");
  EXPECT_ERROR(ConfigError, key_value_question(records[0], 3, 0, 0), "3 shots", "3 pairs");
}

TEST(MadeDocumentTasks, EqualSeedsGiveEqualBytesAndOthersDiffer) {
  const QuestionSet set = small_set(40);
  const std::function<TaskItem(const MadeSample&)> tasks[] = {
      [&](const MadeSample& s) { return document_question(set, DocumentPrompt::helmet, s); },
      [](const MadeSample& s) { return key_value_question(KeyValueTask{}, s); }};
  for (const auto& task : tasks) {
    EXPECT_EQ(task(sample_of(1500, 1)).context, task(sample_of(1500, 1)).context);
    EXPECT_NE(task(sample_of(1500, 1)).context, task(sample_of(1500, 2)).context);
    EXPECT_NE(task(sample_of(1500, 1)).context, task(sample_of(1500, 1, 8)).context);
  }
}

}  // namespace
}  // namespace fovea::made_documents_test
