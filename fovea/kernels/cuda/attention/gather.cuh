// Tiles of rows that do not follow each other (the sorted entries of Focus), in the layout that the
// tensor copy engine gives: halves of 64 columns, rows of 128 bytes, 128-byte swizzle.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/attention/tile.cuh"
#include "fovea/kernels/cuda/wgmma.cuh"

namespace fovea::kernels::cuda {

// The tensor rows of tile rows [first, first + kRows), looked up ahead, kRows / 32 per lane of a
// warp; -1: zeros.
template <int kRows>
struct RowsAhead {
  static_assert(kRows % 32 == 0);
  int row[kRows / 32];
  template <class RowOf>
  FOVEA_DEVICE RowsAhead(int first, RowOf row_of) {
#pragma unroll
    for (int n = 0; n < kRows / 32; ++n) row[n] = row_of(first + n * 32 + int(threadIdx.x) % 32);
  }
};

// `thread` of kThreads starts the copy of its part of the rows to `to`, in a tile of kTileRows
// rows.
template <int D, int kTileRows, int kThreads, int kRows>
FOVEA_DEVICE void gather_rows(uint32_t to, const uint16_t* from, int64_t row_stride, int thread,
                              const RowsAhead<kRows>& rows) {
  constexpr int kChunks = D / 8, kStep = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && 32 % kStep == 0);
  const int chunk = thread % kChunks;
  const uint32_t half = to + chunk / 8 * (kTileRows * 128);
#pragma unroll
  for (int n = 0; n < kRows / 32; ++n)
#pragma unroll 2
    for (int r0 = 0; r0 < 32; r0 += kStep) {
      const int r = n * 32 + r0 + thread / kChunks, source = shuffle(rows.row[n], r % 32);
      copy_async_16(half + r * 128 + (((chunk & 7) ^ (r & 7)) << 4),
                    from + (source < 0 ? 0 : source) * row_stride + chunk * 8, source >= 0);
    }
  copy_commit();
}
// All but the last kPending gathers of this thread have landed, and wgmma may read them.
template <int kPending>
FOVEA_DEVICE void gather_wait() {
  copy_wait<kPending>();
  fence_async();
}

}  // namespace fovea::kernels::cuda
