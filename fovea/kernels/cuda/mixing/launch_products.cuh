// Launches of products and passes over rows for one head size.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/launch.cuh"
#include "fovea/kernels/cuda/mixing/launches.h"
#include "fovea/kernels/cuda/mixing/rows.cuh"
#include "fovea/kernels/cuda/mixing/slab_convolution.cuh"

namespace fovea::kernels::cuda::mixing {

template <int D>
int Products<D>::of_tiles(const Problem& p, const Bundle& u, const Rows& a, const Rows& b,
                          const Slab& out, int rows, float factor, bool scaled, bool masked,
                          Stream stream) {
  const int row_tiles = tiles(rows, kProductRows);
  const int last = out.row0 + rows < p.length ? out.row0 + rows : p.length;
  const auto run = [&](auto kernel) {
    return launch(
        kernel,
        grid_of(tiles(last, kProductSteps * kStep), int64_t{p.batch} * u.count * row_tiles, 1), 256,
        tile_product_shared<D>(), stream, p, u, a, b, out, row_tiles, rows, factor, scaled);
  };
  return masked ? run(tile_product_kernel<D, true>) : run(tile_product_kernel<D, false>);
}

template <int D>
int Products<D>::of_rows(const Problem& p, const Bundle& u, const Slab& x, const Rows& keys,
                         const Rows& out, int rows, Owned own, Stream stream) {
  return launch(row_product_kernel<D>, grid_of(int64_t{p.batch} * u.count, tiles(rows, kStep), 1),
                128, product_shared<D>(), stream, p, u, x, keys, out, own);
}

template <int D>
int Products<D>::of_keys(const Problem& p, const Bundle& u, const Slab& x, const Rows& rows,
                         float* out, Owned own, Stream stream) {
  const int shared = p.heads / p.kv_heads;
  const int key_heads = (u.first + u.count - 1) / shared - u.first / shared + 1;
  return launch(key_product_kernel<D>,
                grid_of(int64_t{p.batch} * key_heads, tiles(own.end, kStep), 1), 128,
                product_shared<D>(), stream, p, u, x, rows, out, own);
}

template <int D>
int Products<D>::convolved_logits(const Problem& p, const Bundle& u, const Slab& out, int end,
                                  Stream stream) {
  const dim3 grid = grid_of(int64_t{p.batch} * u.count, tiles(end - out.row0, 64 - kHalo), 1);
  const auto run = [&](auto kernel) {
    return launch(kernel, grid, 128, slab_logits_shared<D>(), stream, p, u, out, end);
  };
  return p.doc_start != nullptr ? run(slab_logits_kernel<D, true>)
                                : run(slab_logits_kernel<D, false>);
}

template <int D>
int Products<D>::norms(const Problem& p, Stream stream) {
  return launch(row_norms_kernel<D>, grid_of(int64_t{p.batch} * p.heads, tiles(p.length, 64), 1),
                256, 0, stream, p);
}

template <int D>
int Products<D>::round_keys(const Problem& p, const float* sums, const Rows& to, Stream stream) {
  return launch(round_keys_kernel<D>, grid_of(tiles(p.length, 4), p.kv_heads, p.batch), 128, 0,
                stream, p, sums, to);
}

}  // namespace fovea::kernels::cuda::mixing
