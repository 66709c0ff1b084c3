// What the rows of a warp see: keys up to the row itself, in its document.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/tile.cuh"

namespace fovea::kernels::cuda::mixing {

// First keys of the documents of a batch row's queries; null: one document.
FOVEA_DEVICE const int32_t* documents(const Problem& p, int b) {
  return p.doc_start != nullptr ? p.doc_start + b * p.doc_batch : nullptr;
}
// First step of `KB` keys that any row from `base` on may see.
FOVEA_DEVICE int first_step(const int32_t* doc, int base, int T, int KB) {
  return doc ? doc[base < 0 ? 0 : base >= T ? T - 1 : base] / KB : 0;
}
// The same of kStep keys for a tile of as many rows.
FOVEA_DEVICE int tile_first_step(const int32_t* doc, int row_tile, int T) {
  int i = row_tile * kStep;
  return doc && i < T ? doc[i] / kStep : 0;
}

// Allowed keys of the thread's two rows (g and g+8 of the warp's 16), and of all 16 at once.
// Rows outside [0, T) or at or beyond `limit` of the frame allow nothing.
template <bool DOC>
struct SeenRows {
  int hi[2], lo[2], all_hi, all_lo, any_hi;
  uint32_t keep;  // documents: bit 8*half + e: query offset e stays inside the document of the row
  bool border;    // some row of the warp has an offset to drop
  // back = true: offsets e read row i - 5 + e (convolution); false: row i + e (its adjoint)
  FOVEA_DEVICE void init(const Lane& ln, int base, int T, int limit, const int32_t* doc,
                         bool back) {
    int first = base + ln.w * 16, last = first + 15;
    bool whole = first >= 0 && last < T && ln.w * 16 + 15 < limit;
    all_hi = whole ? first : -1;
    any_hi = last < T ? last : T - 1;
    all_lo = 0;
    keep = ~0u;
    border = false;
    for (int s = 0; s < 2; s++) {
      int r = ln.w * 16 + ln.g + 8 * s, i = base + r;
      bool live = i >= 0 && i < T && r < limit;
      hi[s] = live ? i : -1;
      lo[s] = 0;
      if constexpr (DOC) {
        if (live) {
          lo[s] = doc[i];
          for (int e = 0; e < kRowReach; e++) {
            int other = back ? i - kHalo + e : i + e;
            bool same = back ? other >= lo[s] : other < T && doc[other] <= i;
            if (!same) keep &= ~(1u << (8 * s + e));
          }
        }
      }
    }
    if constexpr (DOC) {
      int top = lo[0] > lo[1] ? lo[0] : lo[1], cut = keep != ~0u;
      for (int m = 16; m; m >>= 1) {
        int o = shuffle_xor_bits(top, m);
        top = o > top ? o : top;
      }
      all_lo = top;
      border = any_lane(cut != 0);
    }
  }
  FOVEA_DEVICE bool full(int key, int n) const { return key + n - 1 <= all_hi && key >= all_lo; }
  FOVEA_DEVICE bool none(int key) const { return key > any_hi; }
  FOVEA_DEVICE bool allowed(int s, int j) const { return j <= hi[s] && j >= lo[s]; }
};

}  // namespace fovea::kernels::cuda::mixing
