// Decoding with mixed pairs for scalar; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/mixing_decode_rows.h"

namespace fovea::kernels {

template <>
const MixingDecodeTable<float>& mixing_decode_scalar<float>() {
  static constexpr MixingDecodeTable<float> table = mixing_decode_of<float, Single>("scalar");
  return table;
}
template <>
const MixingDecodeTable<BFloat16>& mixing_decode_scalar<BFloat16>() {
  static constexpr MixingDecodeTable<BFloat16> table = mixing_decode_of<BFloat16, Single>("scalar");
  return table;
}

}  // namespace fovea::kernels
