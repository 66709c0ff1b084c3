// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/weight_format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "fovea/base/error.h"

namespace fovea::kernels {
namespace {

// 1 / d of the smallest numbers overflows; they are below half of float16's smallest: zeros.
float inverse_of(float d) {
  const float inverse = 1.0F / d;
  return d == 0.0F || std::isinf(inverse) ? 0.0F : inverse;
}

uint8_t four_bits(float value) { return static_cast<uint8_t>(std::min(value, 15.0F)); }

/// Two numbers of four bits a byte, from 32 of them.
template <class Number>
void put_four_bits(const Number& number, std::byte* q) {
  for (int64_t i = 0; i < kBlock / 2; ++i)
    q[i] = static_cast<std::byte>(number(i) | number(i + kBlock / 2) << 4);
}

void check_row(WeightFormat format, size_t bytes, size_t inputs) {
  const auto n = static_cast<int64_t>(inputs);
  require<ShapeError>(
      is_packed(format) && n % kBlock == 0 && static_cast<int64_t>(bytes) == row_bytes(format, n),
      "weights", "expected blocks of {} inputs in {} bytes each; got {} in {} bytes", kBlock,
      block_bytes(format), inputs, bytes);
}

/// The parts of a packed row.
template <class Byte>
struct RowParts {
  Byte *d, *m, *q;
  RowParts(WeightFormat format, Byte* row, int64_t blocks)
      : d(row), m(d + 2 * blocks), q(d + 2 * block_scales(format) * blocks) {}
};

uint16_t half_at(const std::byte* bytes) {
  uint16_t half = 0;
  std::memcpy(&half, bytes, sizeof half);
  return half;
}

}  // namespace

BlockScales quantise_block(WeightFormat format, const float* x, std::byte* q) {
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  if (format == WeightFormat::q4_1) {
    const float m = *low, d = (*high - m) / 15.0F, inverse = inverse_of(d);
    put_four_bits([&](int64_t i) { return four_bits((x[i] - m) * inverse + 0.5F); }, q);
    return {float_to_half(d), float_to_half(m)};
  }
  if (format == WeightFormat::q4_0) {
    // The first of the numbers with the largest |x|.
    const float* largest =
        std::max_element(x, x + kBlock, [](float a, float b) { return std::abs(a) < std::abs(b); });
    const float d = *largest / -8.0F, inverse = inverse_of(d);
    put_four_bits([&](int64_t i) { return four_bits(x[i] * inverse + 8.5F); }, q);
    return {float_to_half(d)};
  }
  const float d = std::max(std::abs(*low), std::abs(*high)) / 127.0F, inverse = inverse_of(d);
  for (int64_t i = 0; i < kBlock; ++i)
    q[i] = static_cast<std::byte>(static_cast<int8_t>(std::round(x[i] * inverse)));
  return {float_to_half(d)};
}

void pack_row(WeightFormat format, std::span<const float> x, std::span<std::byte> row) {
  check_row(format, row.size(), x.size());
  const int64_t blocks = std::ssize(x) / kBlock;
  const RowParts<std::byte> to(format, row.data(), blocks);
  for (int64_t b = 0; b < blocks; ++b) {
    const BlockScales scales =
        quantise_block(format, x.data() + b * kBlock, to.q + b * block_quants(format));
    std::memcpy(to.d + 2 * b, &scales.d, 2);
    if (block_scales(format) == 2) std::memcpy(to.m + 2 * b, &scales.m, 2);
  }
}

void pack_blocks(WeightFormat format, std::span<const std::byte> blocks, std::span<std::byte> row) {
  const int64_t count = std::ssize(blocks) / block_bytes(format), quants = block_quants(format);
  check_row(format, row.size(), static_cast<size_t>(count * kBlock));
  const RowParts<std::byte> to(format, row.data(), count);
  const std::byte* from = blocks.data();
  for (int64_t b = 0; b < count; ++b, from += block_bytes(format)) {
    std::memcpy(to.d + 2 * b, from, 2);
    if (block_scales(format) == 2) std::memcpy(to.m + 2 * b, from + 2, 2);
    std::memcpy(to.q + b * quants, from + 2 * block_scales(format), static_cast<size_t>(quants));
  }
}

void unpack_row(WeightFormat format, std::span<const std::byte> row, std::span<float> x) {
  check_row(format, row.size(), x.size());
  const int64_t blocks = std::ssize(x) / kBlock;
  const RowParts<const std::byte> from(format, row.data(), blocks);
  for (int64_t b = 0; b < blocks; ++b) {
    float* const y = x.data() + b * kBlock;
    const std::byte* const q = from.q + b * block_quants(format);
    const float d = half_to_float(half_at(from.d + 2 * b));
    if (format == WeightFormat::q8_0) {
      for (int64_t i = 0; i < kBlock; ++i) y[i] = d * static_cast<float>(static_cast<int8_t>(q[i]));
      continue;
    }
    const bool with_m = format == WeightFormat::q4_1;
    const float m = with_m ? half_to_float(half_at(from.m + 2 * b)) : 0.0F;
    const int zero = with_m ? 0 : 8;
    for (int64_t i = 0; i < kBlock; ++i) {
      const int bits = std::to_integer<int>(q[i % 16]) >> (i < 16 ? 0 : 4) & 15;
      const float product = d * static_cast<float>(bits - zero);
      y[i] = product + m;
    }
  }
}

}  // namespace fovea::kernels
