// The loops of matvec.h for avx2; its compiler flags stand in fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/products/matvec_rows.h"

namespace fovea::kernels {

void mat_vec_avx2(const MatVec& p, int64_t begin, int64_t end) { mat_vec_range(p, begin, end); }
void round_to_int8_avx2(const float* x, int64_t n, float* y) { round_rows_to_int8(x, n, y); }

}  // namespace fovea::kernels
