// The loops of selectors for avx512_bf16: products of pairs; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/selector_rows.h"

namespace fovea::kernels {

const SelectorTable<BFloat16>& selector_avx512_bf16() { return kTable<BFloat16, Pair>; }

}  // namespace fovea::kernels
