// The loops of selectors and of sampling for avx2; its compiler flags stand in
// fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/sampling_rows.h"
#include "fovea/kernels/cpu/selector_rows.h"

namespace fovea::kernels {

template <>
const SelectorTable<float>& selector_avx2<float>() {
  return kTable<float>;
}
template <>
const SelectorTable<BFloat16>& selector_avx2<BFloat16>() {
  return kTable<BFloat16>;
}

const SamplingTable& sampling_avx2() { return kSampling; }

}  // namespace fovea::kernels
