// Gradients of a key-query kernel and of a head mix from one step, in registers.
//
//   kernel:  dK[a, b]  = sum over rows and keys of g[r, j] x[r + a, j + b]
//   mix:     dW[o, c]  = sum over rows and keys of dy[o, j] x[c, j]
//
// Both add lane by lane; lanes are summed in double precision once a strip, so that float32 sums
// stay short.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing/mixing_convolution.h"
#include "fovea/kernels/cpu/mixing/mixing_gradient_task.h"
#include "fovea/kernels/cpu/mixing/mixing_heads.h"

namespace fovea::kernels {
namespace {

// Rows of g that stay in registers, beside one sum for each kernel row and a vector of x.
constexpr int kCorrelatedRows = kRegisters == 32 ? 12 : 6;
static_assert(kCorrelatedRows <= kRowsBehind && kGradientRows % kCorrelatedRows == 0);

/// Rows of numbers, from the first one that is read; a vector holds P::kElements of them a lane.
template <class P>
struct NumberRows {
  const float* first = nullptr;
  int64_t pitch = 0;

  FOVEA_INLINE Float at(int64_t row, int64_t n) const { return load(first + row * pitch + n); }
};
template <>
struct NumberRows<Pair> {
  const uint16_t* first = nullptr;
  int64_t pitch = 0;

  FOVEA_INLINE Float at(int64_t row, int64_t n) const {
    return Pair::load(first + row * pitch + n);
  }
};

/// Adds to sums [cq][ck][kLanes]. The rows of g up to the next multiple of kCorrelatedRows must be
/// zeros, those of x finite.
template <class P, int cq>
void correlate_tile(const NumberRows<P>& g, const NumberRows<P>& x, int64_t rows, int64_t ck,
                    float* sums) {
  for (int64_t r = 0; r < rows; r += kCorrelatedRows) {
    for (int64_t j = 0; j < kStepKeys; j += kLanes * P::kElements) {
      Float left[kCorrelatedRows];
#pragma GCC unroll 12
      for (int i = 0; i < kCorrelatedRows; ++i) left[i] = g.at(r + i, j);
      for (int64_t b = 0; b < ck; ++b) {
        Float s[cq];
#pragma GCC unroll 8
        for (int a = 0; a < cq; ++a) s[a] = load(sums + (a * ck + b) * kLanes);
#pragma GCC unroll 20
        for (int i = 0; i < kCorrelatedRows + cq - 1; ++i) {
          const Float right = x.at(r + i, j + b);
#pragma GCC unroll 8
          for (int a = 0; a < cq; ++a) {
            if (i >= a && i - a < kCorrelatedRows) s[a] = P::multiply_add(left[i - a], right, s[a]);
          }
        }
#pragma GCC unroll 8
        for (int a = 0; a < cq; ++a) store(sums + (a * ck + b) * kLanes, s[a]);
      }
    }
  }
}

/// `x` begins at the row of the oldest tap of the first row of g, and at the oldest key.
template <class P>
FOVEA_INLINE void correlate_rows(int64_t cq, const NumberRows<P>& g, const NumberRows<P>& x,
                                 int64_t rows, int64_t ck, float* sums) {
  switch (cq) {
    case 1:
      return correlate_tile<P, 1>(g, x, rows, ck, sums);
    case 2:
      return correlate_tile<P, 2>(g, x, rows, ck, sums);
    case 3:
      return correlate_tile<P, 3>(g, x, rows, ck, sums);
    case 4:
      return correlate_tile<P, 4>(g, x, rows, ck, sums);
    case 5:
      return correlate_tile<P, 5>(g, x, rows, ck, sums);
    case 6:
      return correlate_tile<P, 6>(g, x, rows, ck, sums);
    case 7:
      return correlate_tile<P, 7>(g, x, rows, ck, sums);
    default:
      return correlate_tile<P, 8>(g, x, rows, ck, sums);
  }
}

/// correlate_rows() of one row of g and the last `rows` kernel rows, the ones that it meets: `x`
/// and `sums` begin at the first of these.
FOVEA_INLINE void correlate_row(const float* g, const float* const* x, int64_t rows, int64_t ck,
                                float* sums) {
  for (int64_t a = 0; a < rows; ++a) {
    for (int64_t b = 0; b < ck; ++b) {
      float* const to = sums + (a * ck + b) * kLanes;
      Float s = load(to);
      for (int64_t j = 0; j < kStepKeys; j += kLanes) s = load(g + j) * load(x[a] + b + j) + s;
      store(to, s);
    }
  }
}

constexpr int kHeadsTogether = 4;
constexpr int kSourcesTogether = kRegisters == 32 ? 4 : 2;

/// Some rows of the heads of one group.
struct HeadRowsOfStep {
  const float* data = nullptr;
  int64_t head = 0, row = 0;

  /// Beyond the last one: again the last.
  const float* of(int64_t h, int64_t heads) const {
    return data + (h < heads ? h : heads - 1) * head;
  }
};

/// Adds to sums [padded width][padded width][kLanes]; entries beyond the width become anything.
FOVEA_INLINE void correlate_heads(int64_t width, const HeadRowsOfStep& dy, const HeadRowsOfStep& x,
                                  int64_t rows, float* sums) {
  const int64_t padded = padded_heads(width);
  for (int64_t o = 0; o < width; o += kHeadsTogether) {
    const float* left[kHeadsTogether];
    for (int a = 0; a < kHeadsTogether; ++a) left[a] = dy.of(o + a, width);
    for (int64_t c = 0; c < width; c += kSourcesTogether) {
      const float* right[kSourcesTogether];
      for (int b = 0; b < kSourcesTogether; ++b) right[b] = x.of(c + b, width);
      float* const to = sums + (o * padded + c) * kLanes;
      Float s[kHeadsTogether][kSourcesTogether];
      load_tile(s, to, padded * kLanes);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < kStepKeys; j += kLanes) {
          Float v[kSourcesTogether];
#pragma GCC unroll 4
          for (int b = 0; b < kSourcesTogether; ++b) v[b] = load(right[b] + r * x.row + j);
#pragma GCC unroll 4
          for (int a = 0; a < kHeadsTogether; ++a) {
            const Float u = load(left[a] + r * dy.row + j);
#pragma GCC unroll 4
            for (int b = 0; b < kSourcesTogether; ++b) s[a][b] = u * v[b] + s[a][b];
          }
        }
      }
      store_tile(s, to, padded * kLanes);
    }
  }
}

/// Adds the sum of the lanes of sums[n] to totals[n], and clears them.
FOVEA_INLINE void collect_lanes(float* sums, int64_t count, double* totals) {
  for (int64_t n = 0; n < count; ++n) {
    double total = 0.0;
    for (int l = 0; l < kLanes; ++l) total += static_cast<double>(sums[n * kLanes + l]);
    totals[n] += total;
    store(sums + n * kLanes, Float{});
  }
}

}  // namespace
}  // namespace fovea::kernels
