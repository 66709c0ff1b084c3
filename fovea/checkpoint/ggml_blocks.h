// Number formats of ggml's blocks: quantised values to float32, and float32 to Q8_0.
//
// A block of a quantised format holds 32 or 256 values as small whole numbers q with float16 scales
// d (and m):
//
//   Q8_0, Q4_0, Q5_0: x = d q            Q4_1, Q5_1: x = d q + m
//   Q6_K:             x = (d s) q        Q4_K, Q5_K: x = (d s) q - (m t)
//
// s and t are whole numbers, one for 16 (Q6_K) or 32 values. Each product and sum is rounded to
// float32: the values are those of the `gguf` package, bit for bit.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace fovea {

/// The formats that are read, by their numbers in a file.
enum class GgmlType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30,
};

/// How a format lies in memory: `bytes` bytes hold `values` values; 1 value for plain numbers.
struct GgmlLayout {
  std::string_view name;  ///< "Q4_1"
  int64_t values = 1;
  size_t bytes = 0;
};
const GgmlLayout& ggml_layout(GgmlType type);

/// The format with this number, where it is one that is read.
std::optional<GgmlType> ggml_type(uint32_t number);
/// The name of any format that ggml defines, "" for other numbers.
std::string_view ggml_name(uint32_t number);

/// Whole blocks to float32. ShapeError where the sizes do not agree.
void dequantise(GgmlType type, std::span<const std::byte> blocks, std::span<float> values);

/// float32 to blocks of Q8_0: d = max|x| / 127 in float32, q = x (1 / d) to the nearest whole
/// number, halves away from 0; then d is rounded to float16. Values must be finite. ShapeError
/// where the sizes do not agree or no whole number of blocks is asked for.
void quantise_q8_0(std::span<const float> values, std::span<std::byte> blocks);

}  // namespace fovea
