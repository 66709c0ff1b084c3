// The passes over tokens around kernels with a soft gate: its factors packed before, the gradient
// of the queries' factors after.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/attention/gate.cuh"
#include "fovea/kernels/cuda/attention/units.h"
#include "fovea/kernels/cuda/launch.cuh"

namespace fovea::kernels::cuda {

// One thread per two tokens and column.
FOVEA_KERNEL(128, 1)
gate_packing(const __grid_constant__ GatePacking p) {
  const int64_t n = int64_t(blockIdx.x) * 128 + threadIdx.x, pair = n / 8 / p.chunks;
  const int b = blockIdx.y, c = n % 8, chunk = n / 8 % p.chunks;
  if (2 * pair >= p.padded) return;
  const auto value = [&](int64_t token) {
    const bool there = token < p.tokens && chunk * 8 + c < p.columns;
    return there ? p.from[b * p.from_batch + token * p.columns + chunk * 8 + c] : 0.0f;
  };
  const float x = value(2 * pair), y = value(2 * pair + 1);
  const uint32_t high = pack(x, y);
  const float2 rounded = unpack(high);
  const uint32_t low = pack(x - rounded.x, y - rounded.y);
  const int64_t batch = int64_t(b) * p.padded * p.chunks * 4;
  p.pairs[batch + (int64_t(chunk) * p.padded / 2 + pair) * 8 + c] = high | uint64_t(low) << 32;
  uint16_t* rows = reinterpret_cast<uint16_t*>(p.rows + batch) +
                   (2 * pair * p.chunks + chunk) * 16 + c / 2 * 4 + c % 2;
  rows[0] = static_cast<uint16_t>(high);
  rows[2] = static_cast<uint16_t>(low);
  rows += p.chunks * 16;
  rows[0] = static_cast<uint16_t>(high >> 16);
  rows[2] = static_cast<uint16_t>(low >> 16);
}

// One thread per query and column.
FOVEA_KERNEL(128, 1)
gate_query_gradient(const __grid_constant__ Problem p) {
  const int64_t n = int64_t(blockIdx.x) * 128 + threadIdx.x;
  const int h = blockIdx.y, b = blockIdx.z, c = n % p.gate_columns;
  const int64_t i = n / p.gate_columns;
  if (i >= p.queries) return;
  const int64_t head = int64_t(b) * p.heads + h;
  const float* sums = p.gate_query_sum + (head * p.gate_chunks + c / 8) * p.padded * 8;
  const int row = i % 16;
  const int64_t at = i / 16 * 128 + (c % 8 * 4 + row % 8 / 2) * 4 + row / 8 * 2 + row % 2;
  p.d_gate_query[(head * p.queries + i) * p.gate_columns + c] = sums[at];
}

int pack_gate(const GatePacking& p, Stream stream) {
  const int64_t threads = int64_t(p.padded) / 2 * p.chunks * 8;
  return launch(gate_packing, grid_of((threads + 127) / 128, p.batch, 1), 128, 0, stream, p);
}

int finish_gate(const Problem& p, Stream stream) {
  const int64_t threads = int64_t(p.queries) * p.gate_columns;
  return launch(gate_query_gradient, grid_of((threads + 127) / 128, p.heads, p.batch), 128, 0,
                stream, p);
}

}  // namespace fovea::kernels::cuda
