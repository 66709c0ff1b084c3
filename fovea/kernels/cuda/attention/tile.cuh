// Tiles in shared memory: swizzled rows of D 16-bit elements, loads, and fragment addresses.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/attention/band.cuh"
#include "fovea/kernels/cuda/attention/problem.h"
#include "fovea/kernels/cuda/device.cuh"

namespace fovea::kernels::cuda {

// A row has D/8 chunks of 16 bytes. XOR with the row number keeps the eight rows of a matrix load
// in eight different bank groups.
template <int D>
struct Swizzle {
  static_assert(D == 64 || D == 96 || D == 128);
  static constexpr int kRowBytes = D * 2;
  FOVEA_DEVICE static uint32_t of(int row) { return D == 96 ? (row >> 1) & 3 : row & 7; }
};

// Addresses of one lane for matrix loads of 16-row blocks. Blocks start at multiples of 8 rows, so
// the swizzle of a lane does not depend on the block.
template <int D>
struct LaneAddress {
  uint32_t row, swizzle, chunk;
  // `lane_row`, `lane_chunk`: this lane's place inside a 16x16 block.
  FOVEA_DEVICE LaneAddress(uint32_t tile, int lane_row, int lane_chunk)
      : row(tile + lane_row * Swizzle<D>::kRowBytes),
        swizzle(Swizzle<D>::of(lane_row)),
        chunk(lane_chunk) {}
  // Block `rows16` down, `cols16` to the right.
  FOVEA_DEVICE uint32_t operator()(int rows16, int cols16) const {
    return row + rows16 * (16 * Swizzle<D>::kRowBytes) + (((cols16 * 2) ^ (chunk ^ swizzle)) << 4);
  }
};

// The four ways a lane points at a 16x16 block (see device.cuh, load_matrix).
struct LaneOf {
  int row, chunk;
  FOVEA_DEVICE static LaneOf a(int lane) { return {lane & 15, lane >> 4}; }  // A, as stored
  FOVEA_DEVICE static LaneOf b(int lane) {
    return {(lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1};
  }                                                                            // B, stored [n][k]
  FOVEA_DEVICE static LaneOf b_t(int lane) { return {lane & 15, lane >> 4}; }  // B, stored [k][n]
  FOVEA_DEVICE static LaneOf a_t(int lane) {
    return {(lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1};
  }  // A, stored [k][m]
};

// Start the copy of tile rows [first, first + kRows) of `from`; row_of(tile row) is the tensor row
// or -1 (zeros).
template <int D, int kRows, int kThreads, class RowOf>
FOVEA_DEVICE void load_tile(uint32_t tile, const uint16_t* from, int64_t row_stride, int first,
                            RowOf row_of) {
  constexpr int kChunks = D / 8;
  const int tid = threadIdx.x;
  if constexpr (kThreads % kChunks == 0) {
    constexpr int kStep = kThreads / kChunks;
    const int chunk = tid % kChunks;
#pragma unroll
    for (int r = tid / kChunks; r < kRows; r += kStep) {
      const int source = row_of(first + r);
      copy_async_16(tile + r * Swizzle<D>::kRowBytes + ((chunk ^ Swizzle<D>::of(r)) << 4),
                    from + (source < 0 ? 0 : source) * row_stride + chunk * 8, source >= 0);
    }
  } else {
    for (int n = tid; n < kRows * kChunks; n += kThreads) {
      const int r = n / kChunks, chunk = n % kChunks;
      const int source = row_of(first + r);
      copy_async_16(tile + r * Swizzle<D>::kRowBytes + ((chunk ^ Swizzle<D>::of(r)) << 4),
                    from + (source < 0 ? 0 : source) * row_stride + chunk * 8, source >= 0);
    }
  }
}

FOVEA_DEVICE const uint16_t* head_of(const Rows& t, int b, int h) {
  return static_cast<const uint16_t*>(t.data) + b * t.batch + h * t.head;
}
FOVEA_DEVICE uint16_t* head_of_mutable(const Rows& t, int b, int h) {
  return static_cast<uint16_t*>(t.data) + b * t.batch + h * t.head;
}

}  // namespace fovea::kernels::cuda
