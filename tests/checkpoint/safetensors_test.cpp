// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "fovea/base/error.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"

namespace fovea::safetensors_test {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

std::string file_bytes(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string out(reinterpret_cast<const char*>(&length), sizeof length);
  return out + header + data;
}

class Safetensors : public ::testing::Test {
 protected:
  std::filesystem::path put(const std::string& bytes) {
    const auto path = folder_ / "x.safetensors";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return path;
  }
  /// The complaint about a file of these bytes.
  std::string complaint(const std::string& bytes) {
    const auto path = put(bytes);
    try {
      SafetensorsFile file(path);
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("x.safetensors"));
      return error.what();
    }
    ADD_FAILURE() << "no CheckpointError";
    return "";
  }
  std::string header_complaint(const std::string& header, size_t data = 8) {
    return complaint(file_bytes(header, std::string(data, 'x')));
  }
  TemporaryFolder folder_;
};

TEST_F(Safetensors, WhatIsWrittenIsReadBackForEveryDtypeAndShape) {
  TensorMap tensors;
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble, at::kLong,
                                    at::kInt, at::kShort, at::kChar, at::kByte, at::kBool}) {
    tensors[fmt::format("t.{}", c10::toString(type))] = at::arange(15).to(type).view({3, 5});
  }
  tensors["scalar"] = at::scalar_tensor(2.5);
  tensors["empty"] = at::empty({0, 4});
  tensors["strided"] = at::arange(12, at::kFloat).view({3, 4}).t();
  const auto path = folder_ / "a.safetensors";
  write_safetensors(path, tensors, {{"who", "me"}, {"text", "\xC3\xA9 \"quoted\""}});

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("text"), "\xC3\xA9 \"quoted\"");
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor read = file.tensor(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(read, tensor)) << name;
  }
}

TEST_F(Safetensors, ATensorIsAViewOfTheMapAndOutlivesTheFileObject) {
  const auto path = folder_ / "a.safetensors";
  const at::Tensor tensor = at::arange(1000, at::kFloat);
  write_safetensors(path, {{"a", tensor}});
  at::Tensor first, second;
  {
    const SafetensorsFile file(path);
    first = file.tensor("a");
    second = file.tensor("a");
  }
  EXPECT_EQ(first.const_data_ptr(), second.const_data_ptr()) << "a copy was made";
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.const_data_ptr()) % 64, 0u);
  EXPECT_TRUE(at::equal(second, tensor));
}

TEST_F(Safetensors, AMisalignedTensorOfAForeignFileIsReadRight) {
  std::string data = "?";
  const double value = 1.25;
  data.append(reinterpret_cast<const char*>(&value), 8);
  const auto path = put(file_bytes(
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"d":{"dtype":"F64","shape":[],"data_offsets":[1,9]}})",
      data));
  EXPECT_EQ(SafetensorsFile(path).tensor("d").item<double>(), 1.25);
}

TEST_F(Safetensors, AMissingNameShowsTheNearestOne) {
  const auto path = folder_ / "a.safetensors";
  write_safetensors(path, {{"model.norm.weight", at::ones({2})}});
  try {
    SafetensorsFile(path).tensor("model.norm.wieght");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'model.norm.weight'"));
  }
}

TEST_F(Safetensors, AMissingFileIsACheckpointError) {
  EXPECT_THROW(SafetensorsFile(folder_ / "none"), CheckpointError);
}

TEST_F(Safetensors, EveryDamageOfTheHeaderIsNamed) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_NO_THROW(SafetensorsFile(put(file_bytes(good, std::string(8, 'x')))));

  EXPECT_THAT(complaint(""), HasSubstr("8 bytes"));
  EXPECT_THAT(complaint("1234567"), HasSubstr("8 bytes"));
  EXPECT_THAT(complaint(std::string(8, '\0') + "xx"), HasSubstr("got 0"));
  EXPECT_THAT(complaint(std::string(8, '\xFF')), HasSubstr("header length"));
  EXPECT_THAT(complaint(file_bytes(good, "").substr(0, 30)), HasSubstr("header length"));
  EXPECT_THAT(header_complaint("{\"a\": nonsense}"), HasSubstr("JSON"));
  EXPECT_THAT(header_complaint("[1]"), HasSubstr("object"));
  EXPECT_THAT(header_complaint(R"({"a":[[[[[[[[1]]]]]]]]})"), HasSubstr("nested"));
  EXPECT_THAT(header_complaint("{\"\xFF\":1}"), HasSubstr("JSON"));
  EXPECT_THAT(
      header_complaint(
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
      HasSubstr("'a' stands twice"));
  EXPECT_THAT(header_complaint(R"({"__metadata__":{"k":1}})"), HasSubstr("__metadata__"));
  EXPECT_THAT(header_complaint(R"({"a":7})"), HasSubstr("'a' must have the key 'dtype'"));
  EXPECT_THAT(header_complaint(R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})"),
              HasSubstr("F31"));
  EXPECT_THAT(header_complaint(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})"),
              HasSubstr("list of sizes"));
  EXPECT_THAT(header_complaint(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})"),
              HasSubstr("list of sizes"));
  EXPECT_THAT(header_complaint(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8]}})"),
              HasSubstr("[begin, end]"));
  EXPECT_THAT(header_complaint(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})"),
              HasSubstr("12 bytes"));
  EXPECT_THAT(
      header_complaint(
          R"({"a":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904,0],"data_offsets":[0,0]}})"),
      HasSubstr("overflow"));
}

TEST_F(Safetensors, EveryDamageOfTheLayoutIsNamed) {
  const auto two = [](const char* a, const char* b) {
    return fmt::format(
        R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
        a, b);
  };
  EXPECT_THAT(header_complaint(two("[0,4]", "[2,6]"), 6), HasSubstr("inside 'a'"));
  EXPECT_THAT(header_complaint(two("[0,4]", "[6,10]"), 10), HasSubstr("belong to no tensor"));
  EXPECT_THAT(header_complaint(two("[0,4]", "[4,8]"), 9), HasSubstr("1 bytes are left over"));
  EXPECT_THAT(header_complaint(two("[0,4]", "[4,8]"), 7), HasSubstr("truncated"));
  EXPECT_THAT(header_complaint(two("[4,0]", "[4,8]"), 8), HasSubstr("'a'"));
}

// A look at all tensors for each new one would take minutes here.
TEST_F(Safetensors, AHundredThousandTensorsAreReadOneAfterTheOther) {
  constexpr size_t tensors = 100'000;
  std::string header = "{";
  for (size_t i = 0; i < tensors; ++i) {
    header +=
        fmt::format(R"({}"layer.{}.weight":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}})",
                    i > 0 ? "," : "", i, 4 * i, 4 * i + 4);
  }
  const std::string data(4 * tensors, '\0');
  const SafetensorsFile file(put(file_bytes(header + "}", data)));
  EXPECT_EQ(file.entries().size(), tensors);
  EXPECT_NE(file.find("layer.99999.weight"), nullptr);
  EXPECT_THAT(complaint(file_bytes(header + R"(,"layer.7.weight":1})", data)),
              HasSubstr("stands twice"));
}

TEST_F(Safetensors, AShapeOfAThousandSizesIsRefused) {
  std::string shape = "1";
  for (int i = 1; i < 1000; ++i) shape += ",1";
  EXPECT_THAT(header_complaint(fmt::format(
                  R"({{"x":{{"dtype":"F64","shape":[{}],"data_offsets":[0,8]}}}})", shape)),
              HasSubstr("at most 64 sizes; got 1000"));
}

TEST_F(Safetensors, NoDamagedByteCrashesTheReader) {
  const auto path = folder_ / "a.safetensors";
  write_safetensors(path, {{"a", at::arange(4, at::kFloat)}, {"b", at::ones({2, 3}, at::kHalf)}},
                    {{"k", "v"}});
  const std::string good = read_file(path);
  std::mt19937 random(7);
  for (int round = 0; round < 1000; ++round) {
    std::string bytes = good;
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < changes; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const auto damaged = put(bytes);
    try {
      const SafetensorsFile file(damaged);
      for (const auto& [name, tensor] : file.tensors()) EXPECT_GE(tensor.numel(), 0);
    } catch (const CheckpointError&) {
    }
  }
}

TEST_F(Safetensors, AFullDiskIsAnIoErrorAndLeavesTheOldFile) {
  const auto path = folder_ / "a.safetensors";
  write_safetensors(path, {{"a", at::ones({4})}});
  const std::string before = read_file(path);
  {
    const testing::SmallDisk disk(4096);
    EXPECT_THROW(write_safetensors(path, {{"a", at::zeros({4000})}}), IoError);
  }
  EXPECT_EQ(read_file(path), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1)
      << "a temporary was left behind";
}

TEST_F(Safetensors, ADtypeTheFormatLacksIsRefused) {
  EXPECT_THROW(write_safetensors(folder_ / "a", {{"a", at::ones({2}, at::kComplexDouble)}}),
               CheckpointError);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a"));
}

}  // namespace
}  // namespace fovea::safetensors_test
