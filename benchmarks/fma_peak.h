// The measured peak of one core: products and sums from registers, as fast as they go, and reading
// memory from one end to the other.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace fovea {

/// GFLOP/s with fused multiply-add of the widest float32 vectors of the instruction set in force; 0
/// where it has no AVX2 vectors. The best of `runs` of some 10 ms each: the clock rises slowly.
double fma_peak_float32(int runs = 8);
/// GFLOP/s with vdpbf16ps; where kernels do not multiply pairs, the float32 peak.
double fma_peak_bfloat16(int runs = 8);

/// The sum of n floats, n a multiple of 64: a loop that waits for memory alone.
float sum_of(const float* x, size_t n);

}  // namespace fovea
