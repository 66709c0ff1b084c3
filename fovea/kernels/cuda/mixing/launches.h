// The compiled mixing kernels of a build: launches by head size, and those that have none.
//
// Each head size makes three units (cmake/FoveaCuda.cmake); what has no head size is one more. A
// launch returns 0 or a cudaError_t.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "fovea/kernels/cuda/mixing/problem.h"
#include "fovea/kernels/cuda/stream.h"

namespace fovea::kernels::cuda::mixing {

inline int tiles(int64_t n, int64_t m) { return static_cast<int>((n + m - 1) / m); }

/// Query rows [begin, end) whose results count.
struct Owned {
  int32_t begin, end;
};
/// The stages of one pass over a slab. Weights stay float16 where a convolution follows the
/// softmax; otherwise bfloat16 is written.
enum class MixStage { all, softmax, after };

// Defined in launch_convolution.cuh: convolutions without mixes.
template <int D>
int convolution_forward(const Problem& p, Stream stream);
template <int D>
int convolution_backward(const Problem& p, Stream stream);

/// Defined in launch_products.cuh. `rows`: of a slab, whole tiles of kStep.
template <int D>
struct Products {
  /// slab = factor a b^T of rows a and keys b. scaled: times the bundle's power of two. masked:
  /// zeros for what is not seen.
  static int of_tiles(const Problem& p, const Bundle& u, const Rows& a, const Rows& b,
                      const Slab& out, int rows, float factor, bool scaled, bool masked,
                      Stream stream);
  static int of_rows(const Problem& p, const Bundle& u, const Slab& x, const Rows& keys,
                     const Rows& out, int rows, Owned own, Stream stream);
  static int of_keys(const Problem& p, const Bundle& u, const Slab& x, const Rows& rows, float* out,
                     Owned own, Stream stream);
  /// slab = the convolution before of the scores; its rows end at query `end`.
  static int convolved_logits(const Problem& p, const Bundle& u, const Slab& out, int end,
                              Stream stream);
  /// Problem::norms.
  static int norms(const Problem& p, Stream stream);
  /// dk or dv from their sums.
  static int round_keys(const Problem& p, const float* sums, const Rows& to, Stream stream);
};

// Defined in launch_mixes.cuh.

/// A bundle's matrix from matrices of groups, or the identity where there are none; turned: groups
/// are [in][out].
int spread_matrices(const Bundle& u, const float* groups, int width, bool turned, float* to,
                    Stream stream);
int gather_matrices(const Problem& p, const Bundle& u, const float* sums, int width, bool turned,
                    float* to, Stream stream);
int bundle_exponent(const Problem& p, const Bundle& u, Stream stream);
/// `rows`: that the slab uses.
int mix_forward(const Problem& p, const Bundle& u, const Slab& x, int rows, MixStage stage,
                Stream stream);
int mix_weights(const Problem& p, const Bundle& u, const Slab& in, const Slab& out, int rows,
                Stream stream);
int mix_backward(const Problem& p, const Bundle& u, const Slab& s, const Slab& g, int rows,
                 Stream stream);
int mix_after_backward(const Problem& p, const Bundle& u, const Slab& y, const Slab& g, int rows,
                       Owned own, Stream stream);
int mix_softmax_backward(const Problem& p, const Bundle& u, const Slab& s, const Slab& w,
                         const Slab& g, int rows, Owned own, Stream stream);

/// Which convolution, and what is written: float16, or bfloat16 times a factor.
enum class SlabConvolution { forward, adjoint, score_gradient };
int slab_convolution(const Problem& p, const Bundle& u, const Slab& in, const Slab& out,
                     const Taps& taps, SlabConvolution what, int row_tiles, Stream stream);
/// Rows of the slabs end at query `end`.
int slab_taps(const Problem& p, const Bundle& u, const Slab& x, const Slab& y, const Taps& taps,
              float* d_taps, Owned own, int row_tiles, int end, Stream stream);

/// A head size of a build.
struct HeadSize {
  int head_dim;
  int (*convolution_forward)(const Problem&, Stream);
  int (*convolution_backward)(const Problem&, Stream);
  decltype(&Products<64>::of_tiles) tile_product;
  decltype(&Products<64>::of_rows) row_product;
  decltype(&Products<64>::of_keys) key_product;
  decltype(&Products<64>::convolved_logits) slab_logits;
  decltype(&Products<64>::norms) row_norms;
  decltype(&Products<64>::round_keys) round_keys;
};

/// Shared memory that the largest kernel of all takes.
constexpr int kMostShared = 227 * 1024;

/// The list of a build.
std::span<const HeadSize> head_sizes();

/// A row of it.
template <int D>
constexpr HeadSize head_size_of() {
  return {.head_dim = D,
          .convolution_forward = mixing::convolution_forward<D>,
          .convolution_backward = mixing::convolution_backward<D>,
          .tile_product = Products<D>::of_tiles,
          .row_product = Products<D>::of_rows,
          .key_product = Products<D>::of_keys,
          .slab_logits = Products<D>::convolved_logits,
          .row_norms = Products<D>::norms,
          .round_keys = Products<D>::round_keys};
}

}  // namespace fovea::kernels::cuda::mixing
