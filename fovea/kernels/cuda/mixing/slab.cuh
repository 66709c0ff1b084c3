// Slabs: the scores of all heads of a bundle for some rows, in device memory, and how the kernels
// read and write them.
//
// The heads of a pair (i, j) meet twice, before and after the softmax. A block that held all of
// them would have room for 16 query rows at D = 96, and read 36 bytes of keys and values a score.
// So kernels pass over slabs of rows instead; their memory is linear in the text.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/convolve.cuh"

namespace fovea::kernels::cuda::mixing {

FOVEA_DEVICE uint16_t* line_of(const Slab& x, int b, int row, int h) {
  return x.data + (((int64_t)b * (x.rows + x.lead) + row + x.lead) * x.heads + h) * x.pitch;
}
// Query head h of the bundle in tensors of all heads.
FOVEA_DEVICE int64_t head_at(const Problem& p, const Bundle& u, int b, int h) {
  return (int64_t)b * p.heads + u.first + h;
}

// A warp's 16 rows x 64 keys of packed scores (pairs of rows g and g+8 of chunk n) to a slab,
// through its own part of shared memory, so that a store instruction fills whole lines. live: rows
// that count; chunks outside [0, pitch) are dropped.
constexpr int kStageBytes = 8 * 17 * 16;
FOVEA_DEVICE void store_scores(uint32_t stage, const uint32_t (&v)[8][2], const Slab& out, int b,
                               int row, int h, int key, int live, const Lane& ln) {
  sync_warp();
#pragma unroll
  for (int n = 0; n < 8; n++) {
    store_shared(stage + (n * 17 + ln.g) * 16 + ln.t * 4, v[n][0]);
    store_shared(stage + (n * 17 + ln.g + 8) * 16 + ln.t * 4, v[n][1]);
  }
  sync_warp();
#pragma unroll
  for (int x = 0; x < 4; x++) {
    int r = x * 4 + ln.l / 8, c = ln.l % 8, at = key + c * 8;
    const uint4 y = load_shared_16(stage + (c * 17 + r) * 16);
    if (r < live && at >= 0 && at < out.pitch) store_global_16(line_of(out, b, row + r, h) + at, y);
  }
}
FOVEA_DEVICE void pack_halves(uint32_t (&v)[8][2], const float (&acc)[8][4]) {
#pragma unroll
  for (int n = 0; n < 8; n++) {
    v[n][0] = pack_half(acc[n][0], acc[n][1]);
    v[n][1] = pack_half(acc[n][2], acc[n][3]);
  }
}

// A warp's window on one query row of a slab: 64 keys of kMixed heads, a Tile<64> whose rows are
// heads. Heads that the bundle lacks are zeros.
using Window = Tile<kStep>;
constexpr int kWindow = kMixed * Window::pitch;
FOVEA_DEVICE void load_window(uint32_t d, const uint16_t* line, const Slab& x, int key,
                              const Lane& ln) {
#pragma unroll
  for (int n = 0; n < 4; n++) {
    int piece = n * 32 + ln.l, h = piece / 8, c = piece % 8;
    bool live = h < x.heads;
    copy_async_16(Window::at(d, h, c), line + (int64_t)(live ? h : 0) * x.pitch + key + c * 8,
                  live);
  }
}
FOVEA_DEVICE void store_window(uint32_t s, uint16_t* line, const Slab& x, int key, const Lane& ln) {
#pragma unroll
  for (int n = 0; n < 4; n++) {
    int piece = n * 32 + ln.l, h = piece / 8, c = piece % 8;
    if (h < x.heads)
      store_global_16(line + (int64_t)h * x.pitch + key + c * 8,
                      load_shared_16(Window::at(s, h, c)));
  }
}

// 64 rows x 64 keys of a slab into a Tile<64>, by 128 threads.
FOVEA_DEVICE void load_slab_tile(uint32_t d, const Slab& x, int b, int h, int row, int key) {
  for (int e = thread_index(); e < kStep * 8; e += 128) {
    int r = e / 8, c = e % 8;
    copy_async_16(Tile<kStep>::at(d, r, c), line_of(x, b, row + r, h) + key + c * 8, true);
  }
}

// Lines of a slab into a ring: line r is query first_row + r, CHUNKS chunks from first_chunk on;
// zeros outside [low, high), past the diagonal and before the document's first key step. Plain
// loads: lanes share lines of device memory, and with 73 rows a chunk the stores do not conflict
// on banks.
template <int LINES, int CHUNKS, int THREADS, class R>
FOVEA_DEVICE void load_lines(R ring, const Slab& x, int b, int h, int first_row, int first_chunk,
                             int low, int high, const int32_t* doc, int T) {
  constexpr int EACH = (LINES * CHUNKS + THREADS - 1) / THREADS;
  uint4 v[EACH];
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    int at = e * THREADS + thread_index(), i = first_row + at / CHUNKS,
        chunk = first_chunk + at % CHUNKS;
    v[e] = uint4{0, 0, 0, 0};
    if (at < LINES * CHUNKS && i >= low && i < high && chunk >= 0 && chunk * 8 <= i &&
        chunk >= tile_first_step(doc, i / kStep, T) * 8)
      v[e] = load_global_16(line_of(x, b, i - x.row0, h) + chunk * 8);
  }
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    int at = e * THREADS + thread_index();
    if (at < LINES * CHUNKS)
      store_shared_16(ring.at(first_chunk + at % CHUNKS) + at / CHUNKS * 16, v[e]);
  }
}

}  // namespace fovea::kernels::cuda::mixing
