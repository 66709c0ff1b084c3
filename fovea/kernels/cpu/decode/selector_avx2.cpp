// The loops of selectors, of sampling and of few keys for avx2; its compiler flags stand in
// fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/sampling_rows.h"
#include "fovea/kernels/cpu/decode/selector_rows.h"
#include "fovea/kernels/cpu/pointwise/few_keys_rows.h"

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

template <>
const FewKeysTable<float>& few_keys_avx2<float>() {
  return kFewKeys<float>;
}
template <>
const FewKeysTable<BFloat16>& few_keys_avx2<BFloat16>() {
  return kFewKeys<BFloat16>;
}

}  // namespace fovea::kernels
