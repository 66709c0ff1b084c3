// Decoding with mixed pairs for avx512; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/mixing_decode_rows.h"

namespace fovea::kernels {

template <>
const MixingDecodeTable<float>& mixing_decode_avx512<float>() {
  static constexpr MixingDecodeTable<float> table = mixing_decode_of<float, Single>("avx512");
  return table;
}
template <>
const MixingDecodeTable<BFloat16>& mixing_decode_avx512<BFloat16>() {
  static constexpr MixingDecodeTable<BFloat16> table = mixing_decode_of<BFloat16, Single>("avx512");
  return table;
}

}  // namespace fovea::kernels
