// Formats of the matrices of linear layers for inference: plain numbers, or packed in blocks.
//
// A block is 32 inputs of one output: small whole numbers q with float16 scales d (and m), the
// numbers of ggml's formats of the same names:
//
//   q8_0  w = d q         q = -128 ... 127   8.5 bits a weight
//   q4_0  w = d (q - 8)   q = 0 ... 15       4.5
//   q4_1  w = d q + m     q = 0 ... 15       5
//
// d q has at most 19 significant bits, so w is exact in float32 (q8_0, q4_0) or rounded once
// (q4_1). A product with packed weights therefore equals that with the same weights in float32.
//
// A packed row is the d of all its blocks, then the m, then the q: kernels widen 16 scales at once.
// The q of a block of four bits are 16 bytes, the low halves first.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fovea/kernels/common/half.h"

namespace fovea::kernels {

enum class WeightFormat : uint8_t { float32, bfloat16, q8_0, q4_0, q4_1 };

/// How products of a few rows with packed weights read the other factor: as it is, or rounded to 16
/// or 8 bits (int16_block.h, int8_block.h). Rounding makes the product of two blocks one of whole
/// numbers.
enum class Activations : uint8_t { exact, int16, int8 };

/// Inputs of a block.
inline constexpr int64_t kBlock = 32;

constexpr bool is_packed(WeightFormat format) { return format >= WeightFormat::q8_0; }
/// Float16 numbers of a block: d, or d and m.
constexpr int64_t block_scales(WeightFormat format) { return format == WeightFormat::q4_1 ? 2 : 1; }
/// Bytes of the q of a block.
constexpr int64_t block_quants(WeightFormat format) {
  return format == WeightFormat::q8_0 ? kBlock : kBlock / 2;
}
constexpr int64_t block_bytes(WeightFormat format) {
  return 2 * block_scales(format) + block_quants(format);
}
/// Bytes of the weights of one output; `inputs` is a multiple of kBlock where they are packed.
constexpr int64_t row_bytes(WeightFormat format, int64_t inputs) {
  if (is_packed(format)) return inputs / kBlock * block_bytes(format);
  return inputs * (format == WeightFormat::float32 ? 4 : 2);
}

/// A matrix [outputs, inputs], one row after the other.
struct WeightRows {
  const void* data = nullptr;  ///< null: no matrix
  WeightFormat format = WeightFormat::float32;
};

/// The scales of a block.
struct BlockScales {
  uint16_t d = 0, m = 0;
};
/// Quantises 32 finite numbers as ggml's reference does; `q` gets block_quants() bytes. Scales
/// above 65504 become infinite: the caller looks at what comes back.
///   q8_0: d = max|x| / 127, q = x / d to the nearest, halves away from 0.
///   q4_0: d = x of the largest |x|, over -8; q = x / d + 8.5 cut off, at most 15.
///   q4_1: m = min x, d = (max x - m) / 15; q = (x - m) / d + 0.5 cut off, at most 15.
BlockScales quantise_block(WeightFormat format, const float* x, std::byte* q);

/// A row of float32 to a packed row. ShapeError where `row` has another size than row_bytes() or
/// the inputs are no whole number of blocks.
void pack_row(WeightFormat format, std::span<const float> x, std::span<std::byte> row);
/// A row of ggml's blocks (scales before the q of each block) to a packed row of the same numbers.
void pack_blocks(WeightFormat format, std::span<const std::byte> blocks, std::span<std::byte> row);
/// The weights of a packed row.
void unpack_row(WeightFormat format, std::span<const std::byte> row, std::span<float> x);

}  // namespace fovea::kernels
