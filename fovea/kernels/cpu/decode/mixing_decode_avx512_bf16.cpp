// Decoding with mixed pairs for avx512_bf16: products of queries and keys in pairs; compiler flags:
// fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/mixing_decode_rows.h"

namespace fovea::kernels {

const MixingDecodeTable<BFloat16>& mixing_decode_avx512_bf16() {
  static constexpr MixingDecodeTable<BFloat16> table =
      mixing_decode_of<BFloat16, Pair>("avx512_bf16");
  return table;
}

}  // namespace fovea::kernels
