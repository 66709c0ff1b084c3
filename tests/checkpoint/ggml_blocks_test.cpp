// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/ggml_blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/kernels/common/half.h"
#include "tests/support/expect_error.h"

namespace fovea::ggml_blocks_test {
namespace {

using Json = nlohmann::json;

/// gguf_blocks.json, which tests/golden/make_gguf_blocks.py wrote with the `gguf` package.
const Json& golden() {
  static const Json json =
      Json::parse(read_file(FOVEA_SOURCE_DIR "/tests/golden/gguf_blocks.json"));
  return json;
}

std::vector<std::byte> bytes_of(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::vector<float> floats_of(const std::string& hex) {
  const std::vector<std::byte> bytes = bytes_of(hex);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(GgmlBlocks, EveryFormatGivesTheGgufPackagesNumbersBitForBit) {
  ASSERT_EQ(golden()["read"].size(), 11u);
  for (const Json& item : golden()["read"]) {
    const auto name = item["type"].get<std::string>();
    const auto type = ggml_type(item["number"].get<uint32_t>());
    ASSERT_TRUE(type.has_value()) << name;
    EXPECT_EQ(ggml_layout(*type).name, name);
    const std::vector<float> expected = floats_of(item["values"]);
    std::vector<float> values(expected.size(), -1.0F);
    dequantise(*type, bytes_of(item["blocks"]), values);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected[i]))
          << name << " value " << i << ": " << values[i] << ", expected " << expected[i];
  }
}

TEST(GgmlBlocks, QuantisingToQ80GivesTheGgufPackagesBytes) {
  const std::vector<float> values = floats_of(golden()["q8_0"]["values"]);
  const std::vector<std::byte> expected = bytes_of(golden()["q8_0"]["blocks"]);
  std::vector<std::byte> blocks(expected.size());
  quantise_q8_0(values, blocks);
  EXPECT_EQ(blocks, expected);
}

TEST(GgmlBlocks, ValuesBelowEveryScaleOfQ80BecomeZeros) {
  const std::vector<float> values(32, std::numeric_limits<float>::denorm_min() * 200);
  std::vector<std::byte> blocks(34, std::byte{1});
  quantise_q8_0(values, blocks);
  EXPECT_EQ(blocks, std::vector<std::byte>(34));
}

TEST(GgmlBlocks, HalvesGoToFloatAndBackExactly) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = half_to_float(static_cast<uint16_t>(half));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    } else {
      ASSERT_EQ(float_to_half(value), half) << value;
    }
  }
}

TEST(GgmlBlocks, FloatsBecomeTheNearestHalfAndTiesGoToEven) {
  for (uint32_t half = 0; half < 0x7C00; ++half) {  // up to infinity, which stands for 65536
    const double low = half_to_float(static_cast<uint16_t>(half));
    const double high = half == 0x7BFF ? 65536.0 : half_to_float(static_cast<uint16_t>(half + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(float_to_half(middle), half + half % 2) << low;
    ASSERT_EQ(float_to_half(std::nextafterf(middle, 0.0F)), half) << low;
    ASSERT_EQ(float_to_half(-std::nextafterf(middle, 1e9F)), 0x8000 | (half + 1)) << low;
  }
  EXPECT_EQ(float_to_half(1e30F), 0x7C00);
}

TEST(GgmlBlocks, SizesThatDoNotAgreeAreRefused) {
  std::vector<std::byte> blocks(34);
  std::vector<float> values(31);
  EXPECT_ERROR(ShapeError, dequantise(GgmlType::q8_0, blocks, values), "Q8_0", "34");
  EXPECT_ERROR(ShapeError, quantise_q8_0(values, blocks), "32", "31");
  values.resize(64);
  EXPECT_ERROR(ShapeError, dequantise(GgmlType::q8_0, blocks, values), "64 values");
  EXPECT_ERROR(ShapeError, quantise_q8_0(values, blocks), "64");
}

TEST(GgmlBlocks, FormatsThatAreNotReadHaveNames) {
  EXPECT_FALSE(ggml_type(23).has_value());
  EXPECT_EQ(ggml_name(23), "IQ4_XS");
  EXPECT_EQ(ggml_name(14), "Q6_K");
  EXPECT_EQ(ggml_name(1000), "");
}

}  // namespace
}  // namespace fovea::ggml_blocks_test
