// Forward attention with mma.sync: one block computes kQueries rows of one head.
//
// FlashAttention-2 schedule. Four warps of 32 rows each: a key fragment read from shared memory
// serves two row blocks. Keys and values are double buffered; tile n+1 is copied while tile n is
// computed.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/attention/epilogue.cuh"
#include "fovea/kernels/cuda/attention/shapes.h"
#include "fovea/kernels/cuda/attention/softmax.cuh"
#include "fovea/kernels/cuda/attention/tile.cuh"

namespace fovea::kernels::cuda {

template <int D, class Score, class Visible>
struct ForwardMma {
  using Shape = ForwardMmaShape<D>;
  static constexpr int BM = Shape::kQueries, BN = Shape::kKeys, MT = Shape::kRowBlocks;
  static constexpr int NT = BN / 8, DT = D / 8;

  // s[m][n] += q[m] k[n]
  FOVEA_DEVICE static void scores(float (&s)[MT][NT][4], const LaneAddress<D>& q,
                                  const LaneAddress<D>& k, uint32_t k_offset) {
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      uint32_t a[MT][4];
#pragma unroll
      for (int m = 0; m < MT; ++m) load_matrix(a[m], q(m, kk));
#pragma unroll
      for (int nn = 0; nn < BN / 16; ++nn) {
        uint32_t b[4];
        load_matrix(b, k(nn, kk) + k_offset);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          mma(s[m][2 * nn], a[m], b[0], b[1]);
          mma(s[m][2 * nn + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
  // o[m] += probability[m] v
  FOVEA_DEVICE static void values(float (&o)[MT][DT][4], const uint32_t (&probability)[MT][NT][2],
                                  const LaneAddress<D>& v, uint32_t v_offset) {
#pragma unroll
    for (int kk = 0; kk < BN / 16; ++kk) {
#pragma unroll
      for (int dd = 0; dd < D / 16; ++dd) {
        uint32_t b[4];
        load_matrix_transposed(b, v(kk, dd) + v_offset);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          const uint32_t a[4] = {probability[m][2 * kk][0], probability[m][2 * kk][1],
                                 probability[m][2 * kk + 1][0], probability[m][2 * kk + 1][1]};
          mma(o[m][2 * dd], a, b[0], b[1]);
          mma(o[m][2 * dd + 1], a, b[2], b[3]);
        }
      }
    }
  }

  FOVEA_DEVICE static void run(const Problem& p) {
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int h = blockIdx.y, b = blockIdx.z;
    const Place at{b, h, h / (p.heads / p.kv_heads)};
    const int i0 = (int(gridDim.x) - 1 - int(blockIdx.x)) * BM;  // heavy tiles first
    const auto tiles = Visible::key_tiles(p, at, i0, BM, BN);
    if constexpr (Visible::kPartialOutput) {
      if (tiles.count == 0) return;
    }

    const uint32_t s_q = shared_base(), s_k = s_q + Shape::kQueryBytes,
                   s_v = s_k + 2 * Shape::kKeyBytes;
    const uint16_t* q = head_of(p.q, b, h);
    const uint16_t* k = head_of(p.k, b, at.g);
    const uint16_t* v = head_of(p.v, b, at.g);
    const auto query_row = [&](int i) { return Visible::query_row(p, at, i); };
    const auto key_row = [&](int j) { return Visible::key_row(p, at, j); };
    // Visit tiles from the last to the first: the masked ones come first.
    const auto tile_at = [&](int n) { return tiles[tiles.count - 1 - n]; };
    const auto load_keys = [&](uint32_t to, const uint16_t* from, int64_t row_stride, int n) {
      if (n < tiles.count)
        load_tile<D, BN, Shape::kThreads>(to, from, row_stride, tile_at(n) * BN, key_row);
      copy_commit();
    };

    load_tile<D, BM, Shape::kThreads>(s_q, q, p.q.row, i0, query_row);
    load_keys(s_k, k, p.k.row, 0);
    load_keys(s_v, v, p.v.row, 0);

    const LaneOf la = LaneOf::a(lane), lb = LaneOf::b(lane), lv = LaneOf::b_t(lane);
    const LaneAddress<D> q_at(s_q + warp * (16 * MT) * D * 2, la.row, la.chunk);
    const LaneAddress<D> k_at(s_k, lb.row, lb.chunk), v_at(s_v, lv.row, lv.chunk);
    OnlineSoftmax<MT, NT, Score, Visible> softmax(p, at, i0 + warp * (16 * MT) + lane / 4);
    float o[MT][DT][4] = {};

#pragma unroll 1
    for (int n = 0; n < tiles.count; ++n) {
      const int j0 = tile_at(n) * BN;
      const uint32_t slot = (n & 1) * Shape::kKeyBytes, other = Shape::kKeyBytes - slot;
      load_keys(s_k + other, k, p.k.row, n + 1);
      copy_wait<2>();
      sync_block();
      float s[MT][NT][4] = {};
      scores(s, q_at, k_at, slot);

      const auto keys_of = [&](int j, typename Visible::Key(&key)[2]) {
        key[0] = Visible::key(p, at, j);
        key[1] = Visible::key(p, at, j + 1);
      };
      const bool capped_later =
          softmax.logits(p, at, s, j0, Visible::full(p, at, i0, j0, BM, BN), keys_of);
      if (softmax.weights(p, at, s, capped_later)) softmax.correct(o);
      uint32_t probability[MT][NT][2];
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int x = 0; x < NT; ++x)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            probability[m][x][half] = pack(s[m][x][2 * half], s[m][x][2 * half + 1]);

      load_keys(s_v + other, v, p.v.row, n + 1);
      copy_wait<2>();
      sync_block();
      values(o, probability, v_at, slot);
    }
    copy_wait<0>();
    sync_block();
    finish<D, Visible, MT>(p, at, s_q + warp * (16 * MT) * D * 2, i0 + warp * (16 * MT), o,
                           softmax);
  }
};

template <int D, class Score, class Visible>
FOVEA_KERNEL(ForwardMmaShape<D>::kThreads, ForwardMmaShape<D>::kBlocksPerSM)
forward_mma_kernel(const __grid_constant__ Problem p) {
  ForwardMma<D, Score, Visible>::run(p);
}

}  // namespace fovea::kernels::cuda
