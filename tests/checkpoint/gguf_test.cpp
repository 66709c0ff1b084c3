// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "fovea/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::gguf_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The bytes of a file, put together by hand.
class Bytes {
 public:
  template <class T>
  Bytes& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& u32(uint32_t value) { return number(value); }
  Bytes& u64(uint64_t value) { return number(value); }
  Bytes& text(const std::string& text) {
    u64(text.size());
    bytes_ += text;
    return *this;
  }
  Bytes& raw(const std::string& text) {
    bytes_ += text;
    return *this;
  }
  Bytes& header(uint64_t tensors, uint64_t entries, uint32_t version = 3) {
    return raw("GGUF").u32(version).u64(tensors).u64(entries);
  }
  Bytes& tensor(const std::string& name, const std::vector<uint64_t>& sizes, uint32_t type,
                uint64_t offset) {
    text(name).u32(static_cast<uint32_t>(sizes.size()));
    for (const uint64_t size : sizes) u64(size);
    return u32(type).u64(offset);
  }
  Bytes& pad(size_t alignment = 32) {
    bytes_.append((alignment - bytes_.size() % alignment) % alignment, '\0');
    return *this;
  }
  operator const std::string&() const { return bytes_; }

 private:
  std::string bytes_;
};

constexpr uint32_t kText = 8, kUint32 = 4, kArray = 9, kF32 = 0, kQ4_1 = 3;

/// A small whole file: an entry of every kind, two tensors.
std::string whole_file() {
  Bytes file;
  file.header(2, 4);
  file.text("general.architecture").u32(kText).text("llama");
  file.text("a.number").u32(kUint32).u32(7);
  file.text("a.list").u32(kArray).u32(kText).u64(2).text("x").text("yz");
  file.text("a.flag").u32(7).number<uint8_t>(1);
  file.tensor("first", {3, 2}, kF32, 0).tensor("second", {32}, kQ4_1, 32).pad();
  for (int i = 0; i < 6; ++i) file.number(static_cast<float>(i));
  return file.pad().raw(std::string(20, '\1'));
}

class Gguf : public ::testing::Test {
 protected:
  std::filesystem::path put(const std::string& bytes) {
    const auto path = folder_ / "x.gguf";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return path;
  }
  /// The complaint about a file of these bytes.
  template <class E = CheckpointError>
  std::string complaint(const std::string& bytes) {
    const auto path = put(bytes);
    try {
      const GgufFile file(path);
    } catch (const E& error) {
      EXPECT_THAT(error.what(), HasSubstr("x.gguf"));
      return error.what();
    }
    ADD_FAILURE() << "no error of this type";
    return "";
  }
  /// About a file with one metadata entry of this value.
  std::string value_complaint(const Bytes& value) {
    return complaint(Bytes().header(0, 1).text("k").raw(value));
  }
  /// About a file with these tensors and 64 bytes of data.
  template <class E = CheckpointError>
  std::string tensor_complaint(uint64_t count, const Bytes& tensors) {
    return complaint<E>(Bytes().header(count, 0).raw(tensors).pad().raw(std::string(64, 'x')));
  }
  testing::TemporaryFolder folder_;
};

std::vector<std::byte> as_bytes(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST_F(Gguf, AFileOfAnotherProgramIsRead) {
  const GgufFile file(put(whole_file()));
  EXPECT_EQ(file.metadata().at("general.architecture"), GgufValue::of_text("llama"));
  EXPECT_EQ(file.metadata().at("a.number"), GgufValue::of_integer(7));
  EXPECT_EQ(file.metadata().at("a.list"), GgufValue::of_texts({"x", "yz"}));
  EXPECT_EQ(file.metadata().at("a.flag"), GgufValue::of_boolean(true));
  ASSERT_EQ(file.tensors().size(), 2u);
  const GgufTensor* first = file.find("first");
  ASSERT_NE(first, nullptr);
  EXPECT_THAT(first->shape, ElementsAre(2, 3));  // the innermost stands first in the file
  std::vector<float> values(6);
  dequantise(first->type, file.bytes(*first), values);
  EXPECT_THAT(values, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(file.bytes(file.tensors()[1]).size(), 20u);
  EXPECT_EQ(file.find("third"), nullptr);
}

TEST_F(Gguf, VersionTwoAndAnotherAlignmentAreRead) {
  const std::string bytes = Bytes()
                                .header(1, 1, 2)
                                .text("general.alignment")
                                .u32(kUint32)
                                .u32(128)
                                .tensor("a", {1}, kF32, 128)
                                .pad(128)
                                .raw(std::string(128, '\0'))
                                .number(2.5F);
  const GgufFile file(put(bytes));
  std::vector<float> value(1);
  dequantise(GgmlType::f32, file.bytes(file.tensors()[0]), value);
  EXPECT_EQ(value[0], 2.5F);
}

TEST_F(Gguf, WhatIsWrittenIsReadBack) {
  GgufMetadata metadata;
  metadata["text"] = GgufValue::of_text("\xC3\xA9\n");
  metadata["list"] = GgufValue::of_texts({"", "b"});
  metadata["real"] = GgufValue::of_real(0.5);
  metadata["double"] = {.type = GgufType::float64, .reals = {0.1}};
  metadata["flag"] = GgufValue::of_boolean(false);
  metadata["none"] = GgufValue::of_texts({});
  metadata["types"] = GgufValue::of_integers({1, -3});
  for (const GgufType type : {GgufType::int8, GgufType::int16, GgufType::int32, GgufType::int64})
    metadata[fmt::format("i{}", static_cast<int>(type))] = GgufValue::of_integer(-100, type);
  for (const GgufType type :
       {GgufType::uint8, GgufType::uint16, GgufType::uint32, GgufType::uint64})
    metadata[fmt::format("u{}", static_cast<int>(type))] = GgufValue::of_integer(200, type);
  const std::vector<float> values(32, 3.0F);
  std::vector<std::byte> quantised(34);
  quantise_q8_0(values, quantised);
  const auto path = folder_ / "out.gguf";
  write_gguf(path, metadata,
             {{"m", GgmlType::q8_0, {1, 32}, [&] { return quantised; }},
              {"v", GgmlType::f32, {4, 8}, [&] { return as_bytes(values); }}});
  const GgufFile file(path);
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_THAT(file.find("v")->shape, ElementsAre(4, 8));
  EXPECT_EQ(file.find("v")->begin % 32, 0u);
  EXPECT_THAT(file.bytes(*file.find("m")), ::testing::ElementsAreArray(quantised));
  EXPECT_THAT(file.bytes(*file.find("v")), ::testing::ElementsAreArray(as_bytes(values)));
}

TEST_F(Gguf, AWriterThatGivesOtherSizesIsStopped) {
  const auto path = folder_ / "out.gguf";
  const auto four = [] { return std::vector<std::byte>(4); };
  EXPECT_ERROR(ShapeError, write_gguf(path, {}, {{"a", GgmlType::f32, {2}, four}}), "'a'", "8");
  EXPECT_ERROR(ShapeError, write_gguf(path, {}, {{"a", GgmlType::q8_0, {2, 16}, four}}), "Q8_0");
  EXPECT_ERROR(
      CheckpointError,
      write_gguf(path, {}, {{"a", GgmlType::f32, {1}, four}, {"a", GgmlType::f32, {1}, four}}),
      "'a'");
  EXPECT_ERROR(CheckpointError,
               write_gguf(path, {}, {{std::string(64, 'n'), GgmlType::f32, {1}, four}}), "63");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(Gguf, AFileCutAtAnyByteIsACheckpointError) {
  const std::string whole = whole_file();
  EXPECT_NO_THROW(GgufFile(put(whole)));
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_ERROR(CheckpointError, GgufFile(put(whole.substr(0, size))), "x.gguf");
}

TEST_F(Gguf, NoDamagedByteCrashesTheReader) {
  const std::string whole = whole_file();
  size_t read = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int byte : {0x00, 0x01, 0x09, 0x7F, 0x80, 0xFF}) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(byte);
      try {
        const GgufFile file(put(bytes));
        for (const GgufTensor& tensor : file.tensors()) {
          int64_t count = 1;
          for (const int64_t size : tensor.shape) count *= size;
          std::vector<float> values(static_cast<size_t>(count));
          dequantise(tensor.type, file.bytes(tensor), values);
          ++read;
        }
      } catch (const CheckpointError&) {
      } catch (const UnsupportedError&) {
      }
    }
  }
  EXPECT_GT(read, 1000u);  // names, values and data may be anything
}

TEST_F(Gguf, AMissingFileIsACheckpointError) {
  EXPECT_THROW(GgufFile(folder_ / "none.gguf"), CheckpointError);
}

TEST_F(Gguf, EveryDamageOfTheHeadIsNamed) {
  EXPECT_THAT(complaint(""), HasSubstr("begins with 'GGUF'"));
  EXPECT_THAT(complaint("GGML and more"), HasSubstr("GGML"));
  EXPECT_THAT(complaint<UnsupportedError>(Bytes().header(0, 0, 1)), HasSubstr("got 1"));
  EXPECT_THAT(complaint<UnsupportedError>(Bytes().header(0, 0, 4)), HasSubstr("got 4"));
  EXPECT_THAT(complaint<UnsupportedError>(Bytes().header(0, 0, 3u << 24)),
              HasSubstr("little-endian"));
  EXPECT_THAT(complaint(Bytes().header(uint64_t{1} << 60, 0)), HasSubstr("the number of tensors"));
  EXPECT_THAT(complaint(Bytes().header(0, ~uint64_t{0})),
              HasSubstr("the number of metadata entries"));
}

TEST_F(Gguf, EveryDamageOfTheMetadataIsNamed) {
  const std::string zeros(16, '\0');
  EXPECT_THAT(complaint(Bytes().header(0, 1).u64(~uint64_t{0}).raw(zeros)),
              HasSubstr("a metadata key takes"));
  EXPECT_THAT(complaint(Bytes().header(0, 1).text("\xFF").u32(kUint32).u32(1)),
              HasSubstr("must be UTF-8"));
  EXPECT_THAT(value_complaint(Bytes().u32(13).raw(zeros)), HasSubstr("type of 0 to 12; got 13"));
  EXPECT_THAT(value_complaint(Bytes().u32(kArray).u32(kArray).raw(zeros)),
              HasSubstr("arrays of arrays"));
  EXPECT_THAT(value_complaint(Bytes().u32(kArray).u32(kText).u64(uint64_t{1} << 61).raw(zeros)),
              HasSubstr("the items of 'k'"));
  EXPECT_THAT(
      value_complaint(
          Bytes().u32(kArray).u32(0).u64((1 << 24) + 1).raw(std::string((1 << 24) + 1, 'x'))),
      HasSubstr("at most 16777216 items"));
  EXPECT_THAT(value_complaint(Bytes().u32(kText).u64(uint64_t{1} << 40)), HasSubstr("0 are left"));
  EXPECT_THAT(value_complaint(Bytes().u32(7).number<uint8_t>(2)), HasSubstr("0 or 1; got 2"));
  EXPECT_THAT(value_complaint(Bytes().u32(10).u64(~uint64_t{0})), HasSubstr("below 2^63"));
  EXPECT_THAT(
      complaint(Bytes().header(0, 2).text("k").u32(kUint32).u32(1).text("k").u32(kUint32).u32(1)),
      HasSubstr("'k' stands twice"));
  for (const uint32_t alignment : {0u, 4u, 33u, 1u << 21})
    EXPECT_THAT(
        complaint(
            Bytes().header(0, 1).text("general.alignment").u32(kUint32).u32(alignment).raw(zeros)),
        HasSubstr("'general.alignment' must be a power of two"));
  EXPECT_THAT(
      complaint(Bytes().header(0, 1).text("general.alignment").u32(kText).text("32").raw(zeros)),
      HasSubstr("another type"));
}

TEST_F(Gguf, EveryDamageOfTheTensorsIsNamed) {
  const auto one = [](const std::vector<uint64_t>& sizes, uint32_t type, uint64_t offset) {
    return Bytes().tensor("a", sizes, type, offset);
  };
  EXPECT_THAT(tensor_complaint(1, one({}, kF32, 0)), HasSubstr("1 to 4 axes; got 0"));
  EXPECT_THAT(tensor_complaint(1, one({1, 1, 1, 1, 1}, kF32, 0)), HasSubstr("got 5"));
  EXPECT_THAT(tensor_complaint(1, one({0}, kF32, 0)), HasSubstr("at least 1"));
  EXPECT_THAT(tensor_complaint(1, one({uint64_t{1} << 40, uint64_t{1} << 40}, kF32, 0)),
              HasSubstr("63 bits"));
  EXPECT_THAT(tensor_complaint(1, one({uint64_t{1} << 62}, kF32, 0)), HasSubstr("63 bits"));
  EXPECT_THAT(tensor_complaint(1, one({33}, kQ4_1, 0)), HasSubstr("whole blocks of 32"));
  EXPECT_THAT(tensor_complaint(1, one({1}, 4, 0)), HasSubstr("unknown number format 4"));
  EXPECT_THAT(tensor_complaint<UnsupportedError>(1, one({256}, 23, 0)), HasSubstr("IQ4_XS"));
  EXPECT_THAT(tensor_complaint(1, one({1}, kF32, 4)), HasSubstr("multiple of 32"));
  EXPECT_THAT(tensor_complaint(1, one({1}, kF32, 64)), HasSubstr("inside the file"));
  EXPECT_THAT(tensor_complaint(1, one({1}, kF32, uint64_t{1} << 63)), HasSubstr("truncated"));
  EXPECT_THAT(tensor_complaint(2, one({9}, kF32, 0).tensor("b", {1}, kF32, 32)),
              HasSubstr("'b' begins at byte"));
  EXPECT_THAT(tensor_complaint(2, one({1}, kF32, 0).tensor("a", {1}, kF32, 32)),
              HasSubstr("'a' stands twice"));
}

TEST_F(Gguf, ACountOfTensorsThatLeavesBytesOverIsNamed) {
  std::string bytes = whole_file();
  constexpr size_t count_at = 8;  // after magic number and version
  ASSERT_EQ(bytes[count_at], 2);
  for (const char fewer : {'\0', '\1'}) {
    bytes[count_at] = fewer;
    EXPECT_THAT(complaint(bytes), HasSubstr("the count is wrong")) << int{fewer};
  }
}

TEST_F(Gguf, ANameCannotActOnTheTerminal) {
  EXPECT_THAT(tensor_complaint(1, Bytes().tensor("\x1b[31mred", {1}, 4, 0)),
              ::testing::Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace fovea::gguf_test
