// metrics.jsonl: appending, torn lines, cutting.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"

namespace fovea::metrics_log_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class MetricsLogTest : public ::testing::Test {
 protected:
  MetricsLogTest() { std::filesystem::remove(path_); }
  ~MetricsLogTest() override { std::filesystem::remove(path_); }

  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / fmt::format("fovea-metrics-{}.jsonl", ::getpid());
};

TEST_F(MetricsLogTest, WhatIsWrittenIsReadBackAcrossWriters) {
  MetricsLog(path_).write({{"global_step", 1}, {"loss/out", 5.5}});
  MetricsLog(path_).write(
      {{"global_step", 2}, {"loss/out", std::nan("")}, {"attention/path", "bad \xFF"}});
  const auto records = read_metrics(path_);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0]["loss/out"], 5.5);
  EXPECT_TRUE(records[1]["loss/out"].is_null());
}

TEST_F(MetricsLogTest, ALineIsInTheFileAsSoonAsItIsWritten) {
  MetricsLog log(path_);
  log.write({{"global_step", 1}});
  EXPECT_EQ(read_file(path_), "{\"global_step\":1}\n");
}

TEST_F(MetricsLogTest, ATornLastLineIsLeftOutAndRemovedBeforeTheNext) {
  write_file(path_, "{\"global_step\":1}\n{\"global_st");
  EXPECT_EQ(read_metrics(path_).size(), 1u);
  MetricsLog(path_).write({{"global_step", 2}});
  EXPECT_EQ(read_file(path_), "{\"global_step\":1}\n{\"global_step\":2}\n");
}

TEST_F(MetricsLogTest, CuttingKeepsTheBytesOfTheStepsUpToTheLast) {
  write_file(
      path_,
      "{\"global_step\": 1, \"x\": "
      "0.10}\n{\"global_step\":2}\n{\"global_step\":3}\n{\"global_step\":2,\"v\":1}\n{\"glo");
  truncate_metrics(path_, 2);
  EXPECT_EQ(
      read_file(path_),
      "{\"global_step\": 1, \"x\": 0.10}\n{\"global_step\":2}\n{\"global_step\":2,\"v\":1}\n");
  truncate_metrics(path_, 0);
  EXPECT_EQ(read_file(path_), "");
}

TEST_F(MetricsLogTest, CuttingAMissingFileDoesNothing) {
  truncate_metrics(path_, 5);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(MetricsLogTest, AFileThatIsNoLogIsRefusedAndKept) {
  for (const char* foreign : {"my notes", "{\"a\": 1}\n", "{\"global_step\":1}\nmy notes"}) {
    write_file(path_, foreign);
    EXPECT_THROW(truncate_metrics(path_, 9), InputError) << foreign;
    EXPECT_EQ(read_file(path_), foreign);
  }
  write_file(path_, "my notes");
  EXPECT_THROW(MetricsLog{path_}, InputError);
}

TEST_F(MetricsLogTest, ABadLineInTheMiddleIsNamed) {
  write_file(path_, "{\"global_step\":1}\nnonsense\n{\"global_step\":3}\n");
  try {
    read_metrics(path_);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path_.string() + ":2:"));
  }
}

TEST_F(MetricsLogTest, ARecordWithoutAStepIsRefused) {
  MetricsLog log(path_);
  EXPECT_THROW(log.write({{"loss/out", 1.0}}), InputError);
  EXPECT_THROW(log.write(Json::array()), InputError);
  EXPECT_EQ(read_file(path_), "");
}

}  // namespace
}  // namespace fovea::metrics_log_test
