// Forward attention with wgmma and TMA (FlashAttention-3 schedule), the same policies.
//
// One producer thread copies tiles with the tensor copy engine (for sorted entries the producer
// warpgroup gathers rows, two warps for k, two for v); kConsumers warpgroups own 64 query
// rows each. A warpgroup issues S = Q K_n and O += P V_{n-1} together and computes the softmax of
// S while the second product runs. With two consumers they take turns in issuing (ping-pong), so
// that one computes exponentials while the other keeps the tensor cores busy.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/attention/epilogue.cuh"
#include "fovea/kernels/cuda/attention/gather.cuh"
#include "fovea/kernels/cuda/attention/shapes.h"
#include "fovea/kernels/cuda/attention/softmax.cuh"
#include "fovea/kernels/cuda/wgmma.cuh"

namespace fovea::kernels::cuda {

struct TensorMaps {
  TensorMap q, k, v;
};

template <int D, class Score, class Visible>
struct ForwardWgmma {
  using Shape = ForwardWgmmaShape<D, Visible::kPartialOutput, Score::kGated>;
  static constexpr int BM = Shape::kQueries, BN = Shape::kKeys, NT = BN / 8, DT = D / 8;
  static constexpr int kStages = Shape::kStages, kConsumers = Shape::kConsumers;
  static constexpr bool kPingPong = kConsumers == 2;

  struct Memory {
    uint32_t q, k, v, sets, q_full, k_full, k_empty, v_full, v_empty;
    FOVEA_DEVICE Memory() {
      q = (shared_base() + 1023) & ~1023u;
      k = q + Shape::kQueryBytes;
      v = k + kStages * Shape::kKeyBytes;
      sets = v + kStages * Shape::kKeyBytes;
      q_full = sets + kStages * Shape::kSetBytes;
      k_full = q_full + 8;
      k_empty = k_full + 8 * kStages;
      v_full = k_empty + 8 * kStages;
      v_empty = v_full + 8 * kStages;
    }
  };
  // Step n uses stage n % kStages for the (n / kStages)-th time.
  struct Turn {
    int stage;
    uint32_t parity;
    FOVEA_DEVICE Turn(int n) : stage(n % kStages), parity((n / kStages) & 1) {}
  };

  // One thread, or one warp when there are sets to fetch.
  template <class Tiles>
  FOVEA_DEVICE static void produce(const Problem& p, const TensorMaps& maps, const Memory& m,
                                   const Place& at, int i0, const Tiles& tiles) {
    const int lane = threadIdx.x;
    const auto copy = [&](uint32_t to, const TensorMap* map, uint32_t barrier, int rows, int row,
                          int head) {
      if (lane != 0) return;
      barrier_expect(barrier, rows * D * 2);
      for (int c = 0; c < D; c += 64)
        tensor_copy(to + c / 64 * (rows * 128), map, barrier, c, row, head, at.b);
    };
    copy(m.q, &maps.q, m.q_full, BM, i0, at.h);
    for (int n = 0; n < tiles.count; ++n) {
      const Turn turn(n);
      const int j0 = tiles[tiles.count - 1 - n] * BN;
      const uint32_t offset = turn.stage * Shape::kKeyBytes, barrier = turn.stage * 8;
      SetsAhead<32> sets(p, at, j0, lane);
      barrier_wait(m.k_empty + barrier, turn.parity ^ 1);
      copy(m.k + offset, &maps.k, m.k_full + barrier, BN, j0, at.g);
      if constexpr (Visible::kSets) {
        sets.store(m.sets + turn.stage * Shape::kSetBytes, lane);
        barrier_arrive(m.k_full + barrier);
      }
      barrier_wait(m.v_empty + barrier, turn.parity ^ 1);
      copy(m.v + offset, &maps.v, m.v_full + barrier, BN, j0, at.g);
    }
  }
  // The sets of a key tile, on their way through the registers of kThreads threads.
  template <int kThreads>
  struct SetsAhead {
    uint64_t set[Visible::kSets ? BN / kThreads : 1];
    FOVEA_DEVICE SetsAhead(const Problem& p, const Place& at, int j0, int thread) {
      if constexpr (Visible::kSets) {
#pragma unroll
        for (int x = 0; x < BN / kThreads; ++x)
          set[x] = Visible::key_set(p, at, j0 + x * kThreads + thread);
      }
    }
    FOVEA_DEVICE void store(uint32_t to, int thread) const {
#pragma unroll
      for (int x = 0; x < BN / kThreads; ++x)
        store_shared_8(to + (x * kThreads + thread) * 8, set[x]);
    }
  };

  // The same by 128 threads: warps 0 and 1 gather k, warps 2 and 3 gather v, both half of q.
  template <class Tiles>
  FOVEA_DEVICE static void gather(const Problem& p, const Memory& m, const Place& at, int i0,
                                  const Tiles& tiles) {
    const auto row_of = [&](int i) { return Visible::query_row(p, at, i); };
    const int thread = threadIdx.x % 64;
    const bool values = threadIdx.x >= 64;
    const int mine = values ? BM / 2 : 0;  // both halves gather half of q
    gather_rows<D, BM, 64>(m.q + mine * 128, head_of(p.q, at.b, at.h), p.q.row, thread,
                           RowsAhead<BM / 2>(i0 + mine, row_of));
    const uint16_t* from = values ? head_of(p.v, at.b, at.g) : head_of(p.k, at.b, at.g);
    const int64_t row_stride = values ? p.v.row : p.k.row;
    const uint32_t to = values ? m.v : m.k, full = values ? m.v_full : m.k_full,
                   empty = values ? m.v_empty : m.k_empty;
    for (int n = 0; n < tiles.count; ++n) {
      const Turn turn(n);
      const int j0 = tiles[tiles.count - 1 - n] * BN;
      const RowsAhead<BN> rows(j0, row_of);
      const SetsAhead<64> sets(p, at, j0, thread);
      barrier_wait(empty + turn.stage * 8, turn.parity ^ 1);
      gather_rows<D, BN, 64>(to + turn.stage * Shape::kKeyBytes, from, row_stride, thread, rows);
      if constexpr (Visible::kSets) {
        if (!values) sets.store(m.sets + turn.stage * Shape::kSetBytes, thread);
      }
      if (n == 0) {  // the first tile travels together with q
        gather_wait<1>();
        barrier_arrive(m.q_full);
      }
      gather_wait<0>();
      barrier_arrive(full + turn.stage * 8);
    }
  }

  // s = q k^T: 64 query rows at `q`, a key tile at `k`.
  FOVEA_DEVICE static void scores(float (&s)[NT][4], uint32_t q, uint32_t k) {
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      const uint32_t step = kk % 4 * 32;
      wgmma_ss(s, matrix_descriptor(q + kk / 4 * (BM * 128) + step, 16, 1024),
               matrix_descriptor(k + kk / 4 * (BN * 128) + step, 16, 1024), kk > 0);
    }
  }
  // o += p v
  FOVEA_DEVICE static void values(float (&o)[DT][4], const uint32_t (&p)[NT / 2][4], uint32_t v) {
#pragma unroll
    for (int kk = 0; kk < BN / 16; ++kk)
      wgmma_rs(o, p[kk], matrix_descriptor(v + kk * (16 * 128), BN * 128, 1024));
  }
  FOVEA_DEVICE static void pack_weights(uint32_t (&p)[NT / 2][4], const float (&s)[NT][4]) {
#pragma unroll
    for (int kk = 0; kk < NT / 2; ++kk)
#pragma unroll
      for (int x = 0; x < 4; ++x)
        p[kk][x] = pack(s[2 * kk + x / 2][x % 2 * 2], s[2 * kk + x / 2][x % 2 * 2 + 1]);
  }
  FOVEA_DEVICE static void release(uint32_t barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  template <class Tiles>
  FOVEA_DEVICE static void consume(const Problem& p, const Memory& m, const Place& at, int i0,
                                   const Tiles& tiles) {
    const int wg = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int first_row = i0 + wg * 64 + warp * 16;
    OnlineSoftmax<1, NT, Score, Visible> softmax(p, at, first_row + lane / 4);
    float o[1][DT][4] = {};
    if (tiles.count > 0) {
      const uint32_t q = m.q + wg * (64 * 128);
      const auto tile_at = [&](int n) { return tiles[tiles.count - 1 - n] * BN; };
      const auto full = [&](int n) { return Visible::full(p, at, i0, tile_at(n), BM, BN); };
      float s[1][NT][4];
      uint32_t weights[NT / 2][4];

      // Scores of step n -> weights. Gives the key tile back: at once, or after its sets were read.
      const auto weigh = [&](int n, int stage) {
        const uint32_t sets = m.sets + stage * Shape::kSetBytes;
        const auto keys_of = [&](int j, typename Visible::Key(&key)[2]) {
          if constexpr (Visible::kSets) {
            const uint4 two = load_shared_16(sets + (j - tile_at(n)) * 8);
            key[0] = {two.x | uint64_t(two.y) << 32};
            key[1] = {two.z | uint64_t(two.w) << 32};
          }
        };
        if constexpr (!Visible::kSets) release(m.k_empty + stage * 8);
        const bool capped_later = softmax.logits(p, at, s, tile_at(n), full(n), keys_of);
        if constexpr (Visible::kSets) {
          sync_warp();
          release(m.k_empty + stage * 8);
        }
        return softmax.weights(p, at, s, capped_later);
      };

      if (kPingPong && wg == 1) named_arrive(1, 256);
      barrier_wait(m.q_full, 0);
      barrier_wait(m.k_full, 0);
      if (kPingPong) named_sync(1 + wg, 256);
      wgmma_pin(s[0]);
      wgmma_fence();
      scores(s[0], q, m.k);
      wgmma_commit();
      if (kPingPong) named_arrive(2 - wg, 256);
      wgmma_wait<0>();
      wgmma_pin(s[0]);
      weigh(0, 0);
      pack_weights(weights, s[0]);

#pragma unroll 1
      for (int n = 1; n < tiles.count; ++n) {
        const Turn turn(n), before(n - 1);
        barrier_wait(m.k_full + turn.stage * 8, turn.parity);
        if (kPingPong) named_sync(1 + wg, 256);
        wgmma_pin(s[0]);
        wgmma_pin(o[0]);
        wgmma_fence();
        scores(s[0], q, m.k + turn.stage * Shape::kKeyBytes);
        wgmma_commit();
        barrier_wait(m.v_full + before.stage * 8, before.parity);
        values(o[0], weights, m.v + before.stage * Shape::kKeyBytes);
        wgmma_commit();
        if (kPingPong) named_arrive(2 - wg, 256);
        wgmma_wait<1>();
        wgmma_pin(s[0]);
        const bool moved = weigh(n, turn.stage);
        wgmma_wait<0>();
        wgmma_pin(o[0]);
        release(m.v_empty + before.stage * 8);
        if (moved) softmax.correct(o);
        pack_weights(weights, s[0]);
      }
      if (kPingPong && wg == 0) named_sync(1, 256);  // takes the last turn that warpgroup 1 gave
      const Turn last(tiles.count - 1);
      barrier_wait(m.v_full + last.stage * 8, last.parity);
      wgmma_pin(o[0]);
      wgmma_fence();
      values(o[0], weights, m.v + last.stage * Shape::kKeyBytes);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(o[0]);
    }
    named_sync(4 + wg, 128);  // all warps of the warpgroup are done with q
    if constexpr (Visible::kMerges) wait_for_primary();
    // q lies in D/64 halves of [BM][128 bytes]; this warpgroup owns 64 rows of each.
    const uint32_t mine = warp * 16 * D * 2;
    const uint32_t stage =
        m.q + mine / (64 * 128) * (BM * 128) + wg * (64 * 128) + mine % (64 * 128);
    finish<D, Visible, 1>(p, at, stage, first_row, o, softmax);
  }

  FOVEA_DEVICE static void run(const Problem& p, const TensorMaps& maps) {
    if constexpr (Visible::kPartialOutput) launch_dependents();
    const int h = blockIdx.y, b = blockIdx.z;
    const Place at{b, h, h / (p.heads / p.kv_heads)};
    const int i0 = (int(gridDim.x) - 1 - int(blockIdx.x)) * BM;  // heavy tiles first
    const auto tiles = Visible::key_tiles(p, at, i0, BM, BN);
    if constexpr (Visible::kPartialOutput) {
      if (tiles.count == 0) return;
    }
    const Memory m;
    if (threadIdx.x == 0) {
      barrier_init(m.q_full, Visible::kPartialOutput ? 128 : 1);
      for (int s = 0; s < kStages; ++s) {
        barrier_init(m.k_full + 8 * s,
                     Visible::kPartialOutput || !Visible::kSets ? Shape::kFillers : 33);
        barrier_init(m.v_full + 8 * s, Shape::kFillers);
        barrier_init(m.k_empty + 8 * s, 4 * kConsumers);
        barrier_init(m.v_empty + 8 * s, 4 * kConsumers);
      }
      barrier_fence_init();
    }
    sync_block();
    if (threadIdx.x < 128) {
      registers_down<Shape::kProducerRegisters>();
      if constexpr (Visible::kPartialOutput)
        gather(p, m, at, i0, tiles);
      else if (threadIdx.x < (Visible::kSets ? 32 : 1) && tiles.count > 0)
        produce(p, maps, m, at, i0, tiles);
    } else {
      registers_up<Shape::kConsumerRegisters>();
      consume(p, m, at, i0, tiles);
    }
  }
};

template <int D, class Score, class Visible>
FOVEA_KERNEL((ForwardWgmmaShape<D, Visible::kPartialOutput, Score::kGated>::kThreads), 1)
forward_wgmma_kernel(const __grid_constant__ Problem p, const __grid_constant__ TensorMaps maps) {
  ForwardWgmma<D, Score, Visible>::run(p, maps);
}

}  // namespace fovea::kernels::cuda
