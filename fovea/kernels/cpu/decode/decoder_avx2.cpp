// The row loops of decoder.h for avx2; its compiler flags stand in fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/decoder_rows.h"

namespace fovea::kernels {

template <>
const DecoderTable<float>& decoder_avx2<float>() {
  return kDecoderTable<float>;
}
template <>
const DecoderTable<BFloat16>& decoder_avx2<BFloat16>() {
  return kDecoderTable<BFloat16>;
}

}  // namespace fovea::kernels
