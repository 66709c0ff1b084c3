// The measured peak of one core: products and sums from registers, as fast as they go.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea {

/// GFLOP/s with fused multiply-add of the widest float32 vectors; 0 where there are no AVX2
/// vectors.
double fma_peak_float32();
/// GFLOP/s with vdpbf16ps; where the CPU lacks it, the float32 peak.
double fma_peak_bfloat16();

}  // namespace fovea
