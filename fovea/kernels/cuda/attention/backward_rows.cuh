// The passes over rows around the backward kernels: row sums before, rounding after.
//
//   backward_rows    lse2, delta
//   sink_gradient    d_sink_logit
//   finish_rows      float32 sums in row order to bfloat16: dq of mma.sync, dk and dv of several
//                    launches
//   finish_tiles     dq from tile order (wgmma)
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/attention/groups.cuh"
#include "fovea/kernels/cuda/attention/shapes.h"
#include "fovea/kernels/cuda/attention/tile.cuh"

namespace fovea::kernels::cuda {

// One warp per (b, h, i), i < padded.
template <int D>
FOVEA_KERNEL(128, 1)
backward_rows(const __grid_constant__ Problem p) {
  const int lane = threadIdx.x % 32;
  const int64_t i = int64_t(blockIdx.x) * 4 + threadIdx.x / 32;
  const int h = blockIdx.y, b = blockIdx.z;
  const int64_t head = int64_t(b) * p.heads + h;
  float sum = 0.0f;
  if (i < p.queries) {
    const uint32_t* o = reinterpret_cast<const uint32_t*>(head_of(p.o, b, h) + i * p.o.row);
    const uint32_t* d_o = reinterpret_cast<const uint32_t*>(head_of(p.d_o, b, h) + i * p.d_o.row);
    const uint32_t* rest =
        p.o_rest.data == nullptr
            ? nullptr
            : reinterpret_cast<const uint32_t*>(head_of(p.o_rest, b, h) + i * p.o_rest.row);
    for (int c = lane; c < D / 2; c += 32) {
      float2 x = unpack(o[c]);
      if (rest != nullptr) {
        const float2 more = unpack(rest[c]);
        x.x += more.x;
        x.y += more.y;
      }
      const float2 y = unpack(d_o[c]);
      sum += x.x * y.x + x.y * y.y;
    }
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (lane != 0 || i >= p.padded) return;
  const bool inside = i < p.queries;
  const float lse = inside ? p.lse[head * p.queries + i] : -infinity();
  if (inside && p.d_lse != nullptr) sum -= p.d_lse[head * p.queries + i];
  p.lse2[head * p.padded + i] = lse == -infinity() ? infinity() : lse * kLog2e;
  p.delta[head * p.padded + i] = lse == -infinity() ? 0.0f : sum;
}

// d_z = sum_i e^(z - lse_i) (0 - delta_i): one warp per (b, h), in a fixed order.
template <int D>
FOVEA_KERNEL(32, 1)
sink_gradient(const __grid_constant__ Problem p) {
  const int lane = threadIdx.x, h = blockIdx.x, b = blockIdx.y;
  const int64_t head = int64_t(b) * p.heads + h;
  const float z2 = p.sink_logit[h] * kLog2e;
  float sum = 0.0f;
  for (int i = lane; i < p.queries; i += 32)
    sum -= exp2_fast(z2 - p.lse2[head * p.padded + i]) * p.delta[head * p.padded + i];
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (lane == 0) p.d_sink_logit[head] = sum;
}

// The gradient of a row's temperature: d_tau = -(1 / tau) sum_j d_s s with s = q.k / tau, whatever
// comes after s. Not -(q.dq) / tau: dq is a sum of rounded numbers, and those of a sharp row
// cancel. For the same reason the kernels sum d_s (s - lse) where no cap stands between s and the
// weights: sum_j d_s is known without rounded numbers, d_lse plus the sink's share of delta.
FOVEA_DEVICE void finish_temperature(const Problem& p, int b, int h, int64_t i) {
  const int64_t head = int64_t(b) * p.heads + h, row = head * p.queries + i;
  float sum = p.temperature_sum[head * p.padded + i];
  const float lse = p.lse[row];
  if (p.softcap == 0.0f && lse != -infinity()) {
    float all = p.d_lse != nullptr ? p.d_lse[row] : 0.0f;
    if (p.sink_logit != nullptr)
      all += exp2_fast((p.sink_logit[h] - lse) * kLog2e) * p.delta[head * p.padded + i];
    sum += lse * all;
  }
  p.d_temperature[row] = -sum / p.temperature[int64_t(b) * p.queries + i];
}

// One warp per row.
template <int D>
FOVEA_KERNEL(128, 1)
finish_rows(const __grid_constant__ Problem p, const float* sums, Rows out, int heads, int rows,
            float factor, bool temperature) {
  const int lane = threadIdx.x % 32;
  const int64_t i = int64_t(blockIdx.x) * 4 + threadIdx.x / 32;
  const int h = blockIdx.y, b = blockIdx.z;
  if (i >= rows) return;
  const int64_t head = int64_t(b) * heads + h;
  const float* from = sums + (head * rows + i) * D;
  uint32_t* to = reinterpret_cast<uint32_t*>(head_of_mutable(out, b, h) + i * out.row);
  for (int c = lane; c < D / 2; c += 32)
    to[c] = pack(from[2 * c] * factor, from[2 * c + 1] * factor);
  if (temperature && lane == 0) finish_temperature(p, b, h, i);
}

// Where dQ of (row, column), column even, lies in a [rows, D] buffer in tile order; the next column
// follows. A warp's 4 KiB: [8 blocks of 8 columns][lane][row g: 2 columns, row g + 8: 2 columns].
template <int D>
struct TileOrder {
  static constexpr int BM = BackwardWgmmaShape<D>::kQueries;
  FOVEA_DEVICE static int64_t tile(int row) { return int64_t(row / BM) * (BM * D); }
  FOVEA_DEVICE static int within(int row, int column) {
    const int warp = row % 64 / 16, half = row % 16 / 8, g = row % 8;
    const int group = D == 64 ? row % BM / 64 : column / 64;
    return (group * 4 + warp) * 1024 + column % 64 / 8 * 128 + (g * 4 + column % 8 / 2) * 4 +
           half * 2;
  }
};

// dq in tile order -> 16-bit rows: four lanes per row, 8 columns at a time; 32 rows per block.
// kEntries: adds the rows' entries.
template <int D, bool kEntries>
FOVEA_KERNEL(128, 1)
finish_tiles(const __grid_constant__ Problem p, float factor, bool temperature) {
  const int part = threadIdx.x % 4, i = int(blockIdx.x) * 32 + threadIdx.x / 4;
  const int h = blockIdx.y, b = blockIdx.z, row = min_of(i, p.queries - 1);
  const Place at{b, h, h / (p.heads / p.kv_heads)};
  const int64_t head = int64_t(b) * p.heads + h;
  const float* sums = p.dq_sum + head * p.padded * D + TileOrder<D>::tile(row);
#pragma unroll
  for (int c0 = part * 8; c0 < D; c0 += 32) {
    float x[8];
    const auto add = [&](const float* from, int of, bool first) {
#pragma unroll
      for (int c = 0; c < 8; c += 2) {
        const float2 v = *reinterpret_cast<const float2*>(from + TileOrder<D>::within(of, c0 + c));
        x[c] = v.x + (first ? 0.0f : x[c]);
        x[c + 1] = v.y + (first ? 0.0f : x[c + 1]);
      }
    };
    add(sums, row, true);
    if constexpr (kEntries) {
      const int slots = LocalRest::slots_of(p, at, row);
      for (int s = 0; s < slots; ++s) {
        const int e = p.row_entry[GroupSegments<false>::plan(p, at) * p.slots * p.queries +
                                  int64_t(s) * p.queries + row];
        add(p.dq_entries + head * p.entries * D + TileOrder<D>::tile(e), e, false);
      }
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) x[c] *= factor;
    if (i < p.queries)
      *reinterpret_cast<uint4*>(head_of_mutable(p.dq, b, h) + row * p.dq.row + c0) =
          uint4{pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])};
  }
  if (temperature && part == 0 && i < p.queries) finish_temperature(p, b, h, i);
}

}  // namespace fovea::kernels::cuda
