// The loops of matvec.h for avx512; its compiler flags stand in fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/matvec_rows.h"

namespace fovea::kernels {

template <>
MatVecFunction<float> mat_vec_avx512<float>() {
  return mat_vec_range<float>;
}
template <>
MatVecFunction<BFloat16> mat_vec_avx512<BFloat16>() {
  return mat_vec_range<BFloat16>;
}

}  // namespace fovea::kernels
