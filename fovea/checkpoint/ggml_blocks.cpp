// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/ggml_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/kernels/common/weight_format.h"

namespace fovea {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF data is little-endian");

constexpr int kSmall = 32, kLarge = 256;  // values of a block

struct Named {
  uint32_t number;
  std::string_view name;
};
// Formats that ggml defines and this program does not read.
constexpr std::array<Named, 23> kOthers{{
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},  {40, "NVFP4"}, {41, "Q1_0"},
}};

struct Format {
  GgmlType type;
  GgmlLayout layout;
};
constexpr std::array<Format, 11> kFormats{{
    {GgmlType::f32, {"F32", 1, 4}},
    {GgmlType::f16, {"F16", 1, 2}},
    {GgmlType::bf16, {"BF16", 1, 2}},
    {GgmlType::q4_0, {"Q4_0", kSmall, 2 + 16}},
    {GgmlType::q4_1, {"Q4_1", kSmall, 4 + 16}},
    {GgmlType::q5_0, {"Q5_0", kSmall, 2 + 4 + 16}},
    {GgmlType::q5_1, {"Q5_1", kSmall, 4 + 4 + 16}},
    {GgmlType::q8_0, {"Q8_0", kSmall, 2 + 32}},
    {GgmlType::q4_k, {"Q4_K", kLarge, 4 + 12 + 128}},
    {GgmlType::q5_k, {"Q5_K", kLarge, 4 + 12 + 32 + 128}},
    {GgmlType::q6_k, {"Q6_K", kLarge, 128 + 64 + 16 + 2}},
}};

template <class T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

float half_at(const uint8_t* bytes) { return half_to_float(load<uint16_t>(bytes)); }

/// Whole number i of a block of 32 with four bits each: the low halves of 16 bytes, then the high.
int four_bits(const uint8_t* q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

/// The same with a fifth bit, bit i of `high`.
int five_bits(const uint8_t* q, uint32_t high, int i) {
  return four_bits(q, i) | static_cast<int>(high >> i & 1) << 4;
}

void read_q4_0(const uint8_t* block, float* x) {
  const float d = half_at(block);
  for (int i = 0; i < kSmall; ++i) x[i] = d * static_cast<float>(four_bits(block + 2, i) - 8);
}

void read_q4_1(const uint8_t* block, float* x) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < kSmall; ++i) x[i] = d * static_cast<float>(four_bits(block + 4, i)) + m;
}

void read_q5_0(const uint8_t* block, float* x) {
  const float d = half_at(block);
  const auto high = load<uint32_t>(block + 2);
  for (int i = 0; i < kSmall; ++i)
    x[i] = d * static_cast<float>(five_bits(block + 6, high, i) - 16);
}

void read_q5_1(const uint8_t* block, float* x) {
  const float d = half_at(block), m = half_at(block + 2);
  const auto high = load<uint32_t>(block + 4);
  for (int i = 0; i < kSmall; ++i) x[i] = d * static_cast<float>(five_bits(block + 8, high, i)) + m;
}

void read_q8_0(const uint8_t* block, float* x) {
  const float d = half_at(block);
  for (int i = 0; i < kSmall; ++i) x[i] = static_cast<float>(load<int8_t>(block + 2 + i)) * d;
}

/// Scale and offset of group j of 8, six bits each, in 12 bytes: groups 0 to 3 fill bytes 0 to 3
/// (scales) and 4 to 7 (offsets); the others have four bits in bytes 8 to 11 and two at the top of
/// bytes 0 to 7.
std::pair<int, int> scale_and_offset(const uint8_t* packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4, packed[j + 4] >> 4 | (packed[j] >> 6)
                                                                                     << 4};
}

/// Q4_K (`high` null) and Q5_K: groups of 32; two groups share 32 bytes, the lower halves first.
void read_groups(const uint8_t* block, const uint8_t* high, const uint8_t* low, float* x) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int j = 0; j < 8; ++j) {
    const auto [scale, offset] = scale_and_offset(block + 4, j);
    const float ds = d * static_cast<float>(scale), mt = m * static_cast<float>(offset);
    for (int i = 0; i < 32; ++i) {
      int q = low[32 * (j / 2) + i] >> 4 * (j % 2) & 15;
      if (high != nullptr) q |= (high[i] >> j & 1) << 4;
      x[32 * j + i] = ds * static_cast<float>(q) - mt;
    }
  }
}

void read_q4_k(const uint8_t* block, float* x) { read_groups(block, nullptr, block + 16, x); }
void read_q5_k(const uint8_t* block, float* x) { read_groups(block, block + 16, block + 48, x); }

/// 8 groups of 32, four in each half of the block: low four bits in 64 bytes a half, high two bits
/// in 32 bytes a half, a signed scale for each 16 values.
void read_q6_k(const uint8_t* block, float* x) {
  const uint8_t *low = block, *high = block + 128, *scales = block + 192;
  const float d = half_at(block + 208);
  for (int j = 0; j < 8; ++j) {
    const int half = j / 4, of_half = j % 4;
    for (int i = 0; i < 32; ++i) {
      const int a = low[64 * half + 32 * (of_half % 2) + i] >> 4 * (of_half / 2) & 15;
      const int b = high[32 * half + i] >> 2 * of_half & 3;
      const float ds = d * static_cast<float>(load<int8_t>(scales + (32 * j + i) / 16));
      x[32 * j + i] = ds * static_cast<float>((a | b << 4) - 32);
    }
  }
}

template <class Read>
void each_block(const GgmlLayout& layout, std::span<const std::byte> blocks, float* x,
                const Read& read) {
  const auto* block = reinterpret_cast<const uint8_t*>(blocks.data());
  for (const uint8_t* end = block + blocks.size(); block < end; block += layout.bytes) {
    read(block, x);
    x += layout.values;
  }
}

}  // namespace

const GgmlLayout& ggml_layout(GgmlType type) {
  const auto found = std::ranges::find(kFormats, type, &Format::type);
  require<ShapeError>(found != kFormats.end(), "ggml", "unknown format {}",
                      static_cast<uint32_t>(type));
  return found->layout;
}

std::optional<GgmlType> ggml_type(uint32_t number) {
  const auto type = static_cast<GgmlType>(number);
  const bool known = std::ranges::find(kFormats, type, &Format::type) != kFormats.end();
  return known ? std::optional(type) : std::nullopt;
}

std::string_view ggml_name(uint32_t number) {
  if (const auto type = ggml_type(number)) return ggml_layout(*type).name;
  const auto found = std::ranges::find(kOthers, number, &Named::number);
  return found == kOthers.end() ? std::string_view() : found->name;
}

void dequantise(GgmlType type, std::span<const std::byte> blocks, std::span<float> values) {
  const GgmlLayout& layout = ggml_layout(type);
  const size_t count = values.size() / static_cast<size_t>(layout.values);
  require<ShapeError>(values.size() % static_cast<size_t>(layout.values) == 0 &&
                          blocks.size() == count * layout.bytes,
                      "ggml", "{} values of {} take whole blocks of {} bytes; got {} bytes",
                      values.size(), layout.name, layout.bytes, blocks.size());
  const auto read = [&](const auto& block) { each_block(layout, blocks, values.data(), block); };
  switch (type) {
    case GgmlType::f32:
      return read([](const uint8_t* b, float* x) { *x = load<float>(b); });
    case GgmlType::f16:
      return read([](const uint8_t* b, float* x) { *x = half_at(b); });
    case GgmlType::bf16:
      return read([](const uint8_t* b, float* x) {
        *x = std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(b)) << 16);
      });
    case GgmlType::q4_0:
      return read(read_q4_0);
    case GgmlType::q4_1:
      return read(read_q4_1);
    case GgmlType::q5_0:
      return read(read_q5_0);
    case GgmlType::q5_1:
      return read(read_q5_1);
    case GgmlType::q8_0:
      return read(read_q8_0);
    case GgmlType::q4_k:
      return read(read_q4_k);
    case GgmlType::q5_k:
      return read(read_q5_k);
    case GgmlType::q6_k:
      return read(read_q6_k);
  }
}

void quantise_q8_0(std::span<const float> values, std::span<std::byte> blocks) {
  const GgmlLayout& layout = ggml_layout(GgmlType::q8_0);
  const size_t count = values.size() / kSmall;
  require<ShapeError>(values.size() % kSmall == 0 && blocks.size() == count * layout.bytes, "ggml",
                      "Q8_0 takes {} values for each {} bytes; got {} values and {} bytes", kSmall,
                      layout.bytes, values.size(), blocks.size());
  for (size_t b = 0; b < count; ++b) {
    std::byte* block = blocks.data() + b * layout.bytes;
    constexpr size_t kScale = 2;  // bytes of d
    const kernels::BlockScales scales = kernels::quantise_block(
        kernels::WeightFormat::q8_0, values.data() + b * kSmall, block + kScale);
    std::memcpy(block, &scales.d, kScale);
  }
}

}  // namespace fovea
