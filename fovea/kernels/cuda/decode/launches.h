// Launches of the decoder's kernels (launches.cuh). Each returns 0 or a cudaError_t.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/decode/problem.h"
#include "fovea/kernels/cuda/stream.h"

namespace fovea::kernels::cuda {

/// Rows up to which a product may make its input itself (ProductParameters::stream).
inline constexpr int kMostFusedRows = 2;
/// Query heads of a key head that a block of attention takes.
inline constexpr int kAttentionHeads = 4;

int launch_stream(const StreamParameters& p, Stream stream);
/// `fused`: the input is made from p.stream by every block; p.x otherwise.
int launch_product(const ProductParameters& p, bool fused, Stream stream);
int launch_decode_attention(const DecodeAttentionParameters& p, Stream stream);
int launch_draw(const DrawParameters& p, Stream stream);

}  // namespace fovea::kernels::cuda
