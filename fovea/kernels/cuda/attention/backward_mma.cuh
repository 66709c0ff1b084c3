// Backward attention with mma.sync: one block owns kKeys keys of one key/value head and walks over
// the queries.
//
// The transposed scores S^T = K Q^T and dP^T = V dO^T are computed, so that P^T and dS^T are
// already the A operands of dV += P^T dO and dK += dS^T Q; only dS goes through shared memory, for
// dQ += dS K, which is added to a float32 buffer in 16-byte reductions. Query heads that share a
// key/value head are walked one after the other, so dK and dV need no reduction between blocks.
//
// backward_rows.cuh has the passes over rows before and after it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "fovea/kernels/cuda/attention/band.cuh"
#include "fovea/kernels/cuda/attention/gate.cuh"
#include "fovea/kernels/cuda/attention/score.cuh"
#include "fovea/kernels/cuda/attention/shapes.h"
#include "fovea/kernels/cuda/attention/tile.cuh"

namespace fovea::kernels::cuda {

// Adds a 16x8 accumulator block to float32 rows in 16-byte pieces: neighbours exchange halves, the
// even lane then holds four columns of row g, the odd lane four columns of row g + 8.
// `to` is this lane's row (null: skip), `column` the first column of the block.
FOVEA_DEVICE void add_block(float* to, int column, const float (&d)[4], int t, float factor) {
  const bool odd = t & 1;
  const float r0 = shuffle_xor(odd ? d[0] : d[2], 1);
  const float r1 = shuffle_xor(odd ? d[1] : d[3], 1);
  if (!to) return;
  float* at = to + column + (t / 2) * 4;
  if (odd)
    add_global_4(at, r0 * factor, r1 * factor, d[2] * factor, d[3] * factor);
  else
    add_global_4(at, d[0] * factor, d[1] * factor, r0 * factor, r1 * factor);
}

// Sums of one temperature's gradient over keys: x has 8 columns (queries) of each lane, which the
// lanes of equal lane % 4 share. Columns lie as accumulators have them: 4 blocks of 8, two a lane.
FOVEA_DEVICE void add_column_sums(float* to, float (&x)[8]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 4; n > 0; n /= 2) {
    const bool upper = lane & (4 * n);
#pragma unroll
    for (int c = 0; c < n; ++c) {
      const float mine = upper ? x[c + n] : x[c], other = upper ? x[c] : x[c + n];
      x[c] = mine + shuffle_xor(other, 4 * n);
    }
  }
  const int column = lane / 4;  // of the 8
  add_global(to + column / 2 * 8 + 2 * (lane % 4) + column % 2, x[0]);
}

// Stores 16 rows of a warp, [row, row + 16) of `to`, as far as they are below `rows`. `stage`:
// shared memory of this warp, 16 rows of D elements.
template <int D>
FOVEA_DEVICE void store_block(uint16_t* to, int64_t row_stride, int row, int rows, uint32_t stage,
                              const float (&acc)[D / 8][4], float factor) {
  const int lane = threadIdx.x % 32, gr = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int x = 0; x < D / 8; ++x) {
      const int local = half * 8 + gr;
      store_shared(stage + local * D * 2 + ((x ^ Swizzle<D>::of(local)) << 4) + t * 4,
                   pack(acc[x][2 * half] * factor, acc[x][2 * half + 1] * factor));
    }
  sync_warp();
  constexpr int kChunks = D / 8;
  for (int n = lane; n < 16 * kChunks; n += 32) {
    const int local = n / kChunks, chunk = n % kChunks;
    const uint4 value =
        load_shared_16(stage + local * D * 2 + ((chunk ^ Swizzle<D>::of(local)) << 4));
    if (row + local < rows)
      *reinterpret_cast<uint4*>(to + (row + local) * row_stride + chunk * 8) = value;
  }
}

template <int D, class Score, class Visible>
struct BackwardMma {
  using Shape = BackwardMmaShape<D>;
  static constexpr int BN = Shape::kKeys, BM = Shape::kQueries, NT = BM / 8, DT = D / 8;
  static constexpr int kDqTiles = DT / 2;  // two warps share 16 query rows

  // acc[16 keys x BM queries] = a rows of this warp times b^T
  FOVEA_DEVICE static void transposed_scores(float (&acc)[NT][4], const LaneAddress<D>& a_at,
                                             const LaneAddress<D>& b_at, uint32_t b_offset) {
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      uint32_t a[4];
      load_matrix(a, a_at(0, kk));
#pragma unroll
      for (int xx = 0; xx < BM / 16; ++xx) {
        uint32_t b[4];
        load_matrix(b, b_at(xx, kk) + b_offset);
        mma(acc[2 * xx], a, b[0], b[1]);
        mma(acc[2 * xx + 1], a, b[2], b[3]);
      }
    }
  }
  // acc[16 keys x D] += left[16 keys x BM queries] right[BM queries x D]
  FOVEA_DEVICE static void accumulate(float (&acc)[DT][4], const uint32_t (&left)[NT][2],
                                      const LaneAddress<D>& right, uint32_t offset) {
#pragma unroll
    for (int kk = 0; kk < BM / 16; ++kk) {
      const uint32_t a[4] = {left[2 * kk][0], left[2 * kk][1], left[2 * kk + 1][0],
                             left[2 * kk + 1][1]};
#pragma unroll
      for (int dd = 0; dd < D / 16; ++dd) {
        uint32_t b[4];
        load_matrix_transposed(b, right(kk, dd) + offset);
        mma(acc[2 * dd], a, b[0], b[1]);
        mma(acc[2 * dd + 1], a, b[2], b[3]);
      }
    }
  }

  FOVEA_DEVICE static void run(const Problem& p) {
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, gr = lane / 4, t = lane % 4;
    const int b = blockIdx.z, group_size = p.heads / p.kv_heads;
    Place at{b, int(blockIdx.y) * group_size, int(blockIdx.y)};
    const int j0 = int(blockIdx.x) * BN;
    const auto tiles = Visible::query_tiles(p, at, j0, BM, BN);
    if (Visible::kAddsToKeys && tiles.count == 0) return;

    const uint32_t s_k = shared_base(), s_v = s_k + Shape::kKeyBytes, s_q = s_v + Shape::kKeyBytes,
                   s_do = s_q + 2 * Shape::kQueryBytes, s_ds = s_do + 2 * Shape::kQueryBytes,
                   s_rows = s_ds + Shape::kScoreBytes;
    const auto query_row = [&](int i) { return Visible::query_row(p, at, i); };
    const auto key_row = [&](int j) { return Visible::key_row(p, at, j); };

    const auto load_stage = [&](int n) {
      const int h = at.g * group_size + n / tiles.count, i0 = tiles[n % tiles.count] * BM;
      const uint32_t stage = n & 1;
      load_tile<D, BM, Shape::kThreads>(s_q + stage * Shape::kQueryBytes, head_of(p.q, b, h),
                                        p.q.row, i0, query_row);
      load_tile<D, BM, Shape::kThreads>(s_do + stage * Shape::kQueryBytes, head_of(p.d_o, b, h),
                                        p.d_o.row, i0, query_row);
      const int which = tid / BM, local = tid % BM;
      if (which < (Score::kPerRow ? 3 : 2)) {
        const int row = query_row(i0 + local);
        const uint32_t to = s_rows + (stage * 3 + which) * Shape::kRowBytes + local * 4;
        if (which == 2) {
          store_shared_float(to, Score::scale(p, b, h, row < 0 ? p.queries : row));
        } else {
          const float* from =
              (which == 1 ? p.delta : p.lse2) + (int64_t(b) * p.heads + h) * p.padded;
          copy_async_4(to, from + (row < 0 ? p.padded - 1 : row));
        }
      }
    };

    const int steps = tiles.count * group_size;
    load_tile<D, BN, Shape::kThreads>(s_k, head_of(p.k, b, at.g), p.k.row, j0, key_row);
    load_tile<D, BN, Shape::kThreads>(s_v, head_of(p.v, b, at.g), p.v.row, j0, key_row);
    if (steps > 0) load_stage(0);
    copy_commit();

    const LaneOf la = LaneOf::a(lane), lb = LaneOf::b(lane), lt = LaneOf::b_t(lane),
                 lat = LaneOf::a_t(lane);
    const LaneAddress<D> k_rows(s_k + warp * 16 * D * 2, la.row, la.chunk);
    const LaneAddress<D> v_rows(s_v + warp * 16 * D * 2, la.row, la.chunk);
    const LaneAddress<D> q_cols(s_q, lb.row, lb.chunk), do_cols(s_do, lb.row, lb.chunk);
    const LaneAddress<D> q_right(s_q, lt.row, lt.chunk), do_right(s_do, lt.row, lt.chunk);
    const LaneAddress<D> k_right(s_k, lt.row, lt.chunk);
    const LaneAddress<BM> ds_left(s_ds, lat.row, lat.chunk);
    const int dq_block = warp % (BM / 16), dq_half = warp / (BM / 16);

    float dk[DT][4] = {}, dv[DT][4] = {};
    [[maybe_unused]] float of_gates[Score::kGated ? Score::kGateChunks : 1][4] = {};

#pragma unroll 1
    for (int n = 0; n < steps; ++n) {
      at.h = at.g * group_size + n / tiles.count;
      const int step = n % tiles.count, i0 = tiles[step] * BM;
      const uint32_t offset = (n & 1) * Shape::kQueryBytes;
      copy_wait<0>();
      sync_block();
      if (n + 1 < steps) load_stage(n + 1);
      copy_commit();

      float s[NT][4] = {}, dp[NT][4] = {};
      transposed_scores(s, k_rows, q_cols, offset);
      transposed_scores(dp, v_rows, do_cols, offset);

      uint32_t probability[NT][2], ds[NT][2];
      const uint32_t rows = s_rows + (n & 1) * 3 * Shape::kRowBytes;
      const auto head = Score::head(p, at.h);
      const float constant = Score::kPerRow ? 1.0f : p.scale;
      [[maybe_unused]] Reach reach = Reach::near;
      const bool wants_temperature = Score::kPerRow && p.d_temperature != nullptr;
      float* temperature_sum = p.temperature_sum + (int64_t(b) * p.heads + at.h) * p.padded + i0;
      float sums[8];
      const auto elements = [&](auto masked, auto gate) {
        constexpr GateKind kGate = decltype(gate)::value;
        GateOf<Score, Visible, kGate> of_gate{p, at, i0, j0 + warp * 16, reach};
        typename Visible::Key key[2];
        if constexpr (decltype(masked)::value) {
#pragma unroll
          for (int half = 0; half < 2; ++half)
            key[half] = Visible::key(p, at, j0 + warp * 16 + half * 8 + gr);
        }
#pragma unroll
        for (int x = 0; x < NT; ++x) {
          const int column = x * 8 + 2 * t;
          const float2 lse2 = load_shared_float2(rows + column * 4);
          const float2 delta = load_shared_float2(rows + Shape::kRowBytes + column * 4);
          float2 scale{constant, constant};
          if constexpr (Score::kPerRow)
            scale = load_shared_float2(rows + 2 * Shape::kRowBytes + column * 4);
          float pr[4], gradient[4];
          [[maybe_unused]] float dz[4];
          if constexpr (kGate != GateKind::none) {
            if (x % of_gate.kBlocks == 0) of_gate.prepare(x);
          }
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int i = i0 + column + c;
            const float row_scale = c ? scale.y : scale.x;
            typename Visible::Row row;
            if constexpr (decltype(masked)::value) row = Visible::row(p, at, i);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int e = half * 2 + c, j = j0 + warp * 16 + half * 8 + gr;
              const int distance = Score::kBias ? Visible::distance(p, at, i, j) : 0;
              const float x2 = Score::logit(head, s[x][e], row_scale, distance);
              pr[e] = exp2_fast(x2 - (c ? lse2.y : lse2.x));
              if constexpr (decltype(masked)::value) {
                if (!Visible::sees(p, row, key[half], j)) pr[e] = 0.0f;
              }
              const float d = dp[x][e] - (c ? delta.y : delta.x);
              [[maybe_unused]] float gain = 1.0f;
              if constexpr (kGate != GateKind::none)
                dz[e] = of_gate.element(x, e, pr[e], d, Score::unbiased(head, x2, distance), gain);
              gradient[e] = pr[e] * d;
              if constexpr (Score::kCap) gradient[e] *= Score::gain(head, x2, distance);
              if constexpr (Score::kPerRow) {
                const float of_row = c ? lse2.y : lse2.x;
                float log2_weight = x2;
                if constexpr (kGate == GateKind::log_sigmoid)
                  log2_weight = of_gate.ungated(x, e, x2);
                const float add =
                    pr[e] > 0.0f
                        ? gradient[e] * Score::scaled(head, log2_weight - of_row, of_row, distance)
                        : 0.0f;
                sums[x % 4 * 2 + c] = half == 0 ? add : sums[x % 4 * 2 + c] + add;
                gradient[e] *= row_scale;
              }
              if constexpr (kGate == GateKind::sigmoid_logit) gradient[e] *= gain;
            }
          }
          if (wants_temperature && x % 4 == 3) add_column_sums(temperature_sum + (x - 3) * 8, sums);
          if constexpr (kGate != GateKind::none) of_gate.add(x, dz, of_gates);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            probability[x][half] = pack(pr[2 * half], pr[2 * half + 1]);
            ds[x][half] = pack(gradient[2 * half], gradient[2 * half + 1]);
            const int key = warp * 16 + half * 8 + gr;
            store_shared(s_ds + key * BM * 2 + ((x ^ Swizzle<BM>::of(key)) << 4) + t * 4,
                         ds[x][half]);
          }
        }
      };
      const GateIs<GateKind::none> no_gate;
      if constexpr (Score::kGated) {
        const int own = j0 + warp * 16;
        reach = gate_reach<Visible>(p, at, i0, BM, own, 16);
        if (reach != Reach::near && p.gate != GateKind::weight)
          gate_products<Score::kGateChunks>(
              p, at, s, p.gate_key, own, p.gate_query, i0, reach,
              [&](int x, int e) {
                if constexpr (!Score::kPerRow) return 1.0f / (constant * kLog2e);
                const float2 scale =
                    load_shared_float2(rows + 2 * Shape::kRowBytes + (x * 8 + 2 * t) * 4);
                return divide_fast(1.0f, (e % 2 ? scale.y : scale.x) * kLog2e);
              },
              [&](int x, int e) {
                return local_keys<Visible>(p, at, i0 + x * 8 + 2 * t + e % 2)
                    .has(own + gr + e / 2 * 8);
              });
        with_gate(p, reach, [&](auto gate) { elements(std::true_type{}, gate); });
      } else if (Visible::full(p, at, i0, j0, BM, BN)) {
        elements(std::false_type{}, no_gate);
      } else {
        elements(std::true_type{}, no_gate);
      }

      accumulate(dv, probability, do_right, offset);
      sync_block();

      float dq[kDqTiles][4] = {};
#pragma unroll
      for (int kk = 0; kk < BN / 16; ++kk) {
        uint32_t a[4];
        load_matrix_transposed(a, ds_left(kk, dq_block));
#pragma unroll
        for (int dd = 0; dd < kDqTiles / 2; ++dd) {
          uint32_t kb[4];
          load_matrix_transposed(kb, k_right(kk, dq_half * (kDqTiles / 2) + dd));
          mma(dq[2 * dd], a, kb[0], kb[1]);
          mma(dq[2 * dd + 1], a, kb[2], kb[3]);
        }
      }
      {
        const int row = query_row(i0 + dq_block * 16 + gr + (t & 1) * 8);
        float* to = row < 0 ? nullptr
                            : p.dq_sum + ((int64_t(b) * p.heads + at.h) * p.queries + row) * D +
                                  dq_half * (D / 2);
#pragma unroll
        for (int x = 0; x < kDqTiles; ++x) add_block(to, x * 8, dq[x], t, 1.0f);
      }

      accumulate(dk, ds, q_right, offset);
    }
    copy_wait<0>();
    if constexpr (Score::kGated) store_key_gates(p, at, j0 + warp * 16, of_gates);

    const float factor = Score::kPerRow ? 1.0f : p.scale;
    if constexpr (Visible::kAddsToKeys) {
      const int row = key_row(j0 + warp * 16 + gr + (t & 1) * 8);
      const int64_t to = ((int64_t(b) * p.kv_heads + at.g) * p.keys + row) * D;
#pragma unroll
      for (int x = 0; x < DT; ++x) {
        add_block(row < 0 ? nullptr : p.dk_sum + to, x * 8, dk[x], t, factor);
        add_block(row < 0 ? nullptr : p.dv_sum + to, x * 8, dv[x], t, 1.0f);
      }
    } else {
      sync_block();
      const uint32_t stage = warp * 16 * D * 2;
      const int row = j0 + warp * 16;
      store_block<D>(head_of_mutable(p.dk, b, at.g), p.dk.row, row, p.keys, s_k + stage, dk,
                     factor);
      store_block<D>(head_of_mutable(p.dv, b, at.g), p.dv.row, row, p.keys, s_v + stage, dv, 1.0f);
    }
  }
};

template <int D, class Score, class Visible>
FOVEA_KERNEL(BackwardMmaShape<D>::kThreads, 1)
backward_mma_kernel(const __grid_constant__ Problem p) {
  BackwardMma<D, Score, Visible>::run(p);
}

}  // namespace fovea::kernels::cuda
