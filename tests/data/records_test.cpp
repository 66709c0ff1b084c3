// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/records.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::records_test {
namespace {

class Records : public ::testing::Test {
 protected:
  RecordFile open(const std::string& name, const std::string& text,
                  std::vector<std::string> columns = {}) {
    write_file(folder_ / name, text);
    return RecordFile(folder_ / name, std::move(columns));
  }
  testing::TemporaryFolder folder_;
};

TEST_F(Records, OfJsonLinesHaveTheirLineAsPlace) {
  const RecordFile file = open("a.jsonl", "\xEF\xBB\xBF{\"x\": 1}\r\n\n{\"x\": [\"\u00e9\"]}");
  ASSERT_EQ(file.size(), 2);
  EXPECT_EQ(file.record(0)["x"], 1);
  EXPECT_EQ(file.record(1)["x"][0], "\u00e9");
  EXPECT_EQ(file.place(1), "a.jsonl:3");
}

TEST_F(Records, OfAJsonListKeepTheOrderOfTheirFields) {
  const RecordFile file = open("a.json", R"([{"z": 1, "a": 2}, {"x": {"q": 1, "b": 0}}])");
  ASSERT_EQ(file.size(), 2);
  EXPECT_EQ(file.record(0).begin().key(), "z");
  EXPECT_EQ(file.place(1), "a.json, entry 2");
}

TEST_F(Records, OfATableMayHoldQuotesSeparatorsAndLineEnds) {
  const RecordFile file = open("a.csv", "q,a\r\n\"one, \"\"two\"\"\nthree\",4\r\n5,\n");
  ASSERT_EQ(file.size(), 2);
  EXPECT_EQ(file.record(0)["q"], "one, \"two\"\nthree");
  EXPECT_EQ(file.record(1)["a"], "");
  EXPECT_EQ(file.place(1), "a.csv:4");
  const RecordFile plain = open("b.tsv", "x\ty\n", {"first", "second"});
  EXPECT_EQ(plain.record(0)["second"], "y");
}

TEST_F(Records, ThatCannotBeReadAreRefusedWithTheirPlace) {
  EXPECT_ERROR(InputError, open("a.jsonl", "{\"x\": 1}\n[2]\n").record(1), "a.jsonl:2", "object");
  EXPECT_ERROR(InputError, open("a.jsonl", "{\"x\": 1\n").record(0), "a.jsonl:1", "no JSON");
  EXPECT_ERROR(InputError, open("a.json", "{}"), "list of objects");
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  EXPECT_ERROR(InputError, open("a.json", deep), "a.json", "nested deeper");
  EXPECT_ERROR(InputError, open("a.jsonl", "{\"x\": " + deep + "}\n").record(0), "a.jsonl:1",
               "nested deeper");
  EXPECT_ERROR(InputError, open("a.csv", "a,b\n1\n"), "a.csv:2", "expected 2 fields", "got 1");
  EXPECT_ERROR(InputError, open("a.csv", "a\n\"x\n"), "a.csv:2", "closing quote");
  EXPECT_ERROR(InputError, open("a.csv", ""), "header");
  EXPECT_ERROR(InputError, open("a.jsonl", "{\"x\": \"\xFF\"}"), "UTF-8", "byte 7");
  EXPECT_ERROR(InputError, RecordFile(folder_ / "none.jsonl"), "none.jsonl");
  EXPECT_ERROR(UnsupportedError, open("a.parquet", "x"), ".jsonl", ".parquet");
}

}  // namespace
}  // namespace fovea::records_test
