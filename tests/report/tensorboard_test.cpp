// Event files, read by a decoder of this test's own.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "fovea/base/error.h"

namespace fovea::tensorboard_test {
namespace {

/// Fields of a protobuf message: number -> raw values (varints as decimal text).
using Fields = std::map<uint64_t, std::vector<std::string>>;

uint64_t read_varint(std::string_view& in) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(in.at(0));
    in.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
}

Fields decode(std::string_view in) {
  Fields fields;
  while (!in.empty()) {
    const uint64_t key = read_varint(in);
    const uint64_t wire = key & 7;
    if (wire == 0) {
      fields[key >> 3].push_back(std::to_string(read_varint(in)));
      continue;
    }
    const size_t size = wire == 1 ? 8 : wire == 5 ? 4 : read_varint(in);
    fields[key >> 3].emplace_back(in.substr(0, size));
    in.remove_prefix(size);
  }
  return fields;
}

template <class T>
T number(std::string_view bytes) {
  T value;
  EXPECT_EQ(bytes.size(), sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// The payloads of a file, every checksum verified.
std::vector<std::string> records_of(const std::filesystem::path& path) {
  const std::string all = read_file(path);
  std::string_view in = all;
  std::vector<std::string> records;
  while (!in.empty()) {
    const auto size = number<uint64_t>(in.substr(0, 8));
    EXPECT_EQ(number<uint32_t>(in.substr(8, 4)), masked_crc32c(in.substr(0, 8)));
    records.emplace_back(in.substr(12, size));
    EXPECT_EQ(number<uint32_t>(in.substr(12 + size, 4)), masked_crc32c(records.back()));
    in.remove_prefix(16 + size);
  }
  return records;
}

class TensorBoardTest : public ::testing::Test {
 protected:
  ~TensorBoardTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("fovea-tensorboard-{}", ::getpid());
};

TEST(Crc32c, HasTheValuesOfTheStandard) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);            // the check value of CRC-32C
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(Crc32c, TheMaskRotatesByFifteenAndAdds) {
  const uint32_t crc = 0xE3069283u;
  EXPECT_EQ(masked_crc32c("123456789"), ((crc >> 15) | (crc << 17)) + 0xA282EAD8u);
}

TEST_F(TensorBoardTest, AFileBeginsWithItsVersionAndHoldsTheScalars) {
  TensorBoardWriter writer(folder_);
  writer.add_scalar("loss/out", 300, 1700000000.5, 2.25);
  writer.flush();
  const auto records = records_of(writer.path());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(decode(records[0])[3].at(0), "brain.Event:2");
  Fields event = decode(records[1]);
  EXPECT_EQ(number<double>(event[1].at(0)), 1700000000.5);
  EXPECT_EQ(event[2].at(0), "300");
  Fields value = decode(decode(event[5].at(0))[1].at(0));
  EXPECT_EQ(value[1].at(0), "loss/out");
  EXPECT_EQ(number<float>(value[2].at(0)), 2.25f);
}

TEST_F(TensorBoardTest, ATextIsAStringTensorOfTheTextPlugin) {
  TensorBoardWriter writer(folder_);
  writer.add_text("config", 0, 1.0, std::string(300, 'x'));
  writer.flush();
  Fields value = decode(decode(decode(records_of(writer.path()).at(1))[5].at(0))[1].at(0));
  Fields tensor = decode(value[8].at(0));
  EXPECT_EQ(tensor[1].at(0), "7");
  EXPECT_EQ(tensor[8].at(0), std::string(300, 'x'));
  EXPECT_EQ(decode(decode(value[9].at(0))[1].at(0))[1].at(0), "text");
}

TEST_F(TensorBoardTest, AResumedRunWritesAFileOfItsOwnThatDropsLaterSteps) {
  TensorBoardWriter first(folder_);
  first.add_scalar("loss", 120, 1, 1);
  first.flush();
  const std::string before = read_file(first.path());
  TensorBoardWriter second(folder_, 101);
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(read_file(first.path()), before);
  Fields start = decode(records_of(second.path()).at(1));
  EXPECT_EQ(start[2].at(0), "101");
  EXPECT_EQ(decode(start[7].at(0))[1].at(0), "1");  // SessionLog.START
}

TEST_F(TensorBoardTest, MuchDataReachesTheFileWithoutFlush) {
  TensorBoardWriter writer(folder_);
  for (int64_t step = 0; step < 5000; ++step)
    writer.add_scalar("a/long/tag/of/a/metric", step, 1, 1);
  EXPECT_GT(std::filesystem::file_size(writer.path()), 128u * 1024);
}

TEST_F(TensorBoardTest, AFolderThatCannotBeMadeIsAnIoError) {
  write_file(folder_, "a file where the folder should be");
  EXPECT_THROW(TensorBoardWriter(folder_ / "tensorboard"), IoError);
}

}  // namespace
}  // namespace fovea::tensorboard_test
