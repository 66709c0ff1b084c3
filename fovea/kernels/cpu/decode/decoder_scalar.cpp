// The row loops of decoder.h for scalar; its compiler flags stand in fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/decoder_rows.h"

namespace fovea::kernels {

template <>
const DecoderTable<float>& decoder_scalar<float>() {
  return kDecoderTable<float>;
}
template <>
const DecoderTable<BFloat16>& decoder_scalar<BFloat16>() {
  return kDecoderTable<BFloat16>;
}

}  // namespace fovea::kernels
