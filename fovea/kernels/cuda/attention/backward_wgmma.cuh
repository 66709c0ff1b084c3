// Backward attention with wgmma and TMA: one block owns 128 keys of one key/value head and walks
// over the queries (kQueries at a time), the same policies as backward.cuh.
//
// Two consumer warpgroups own 64 keys each. Per step, with m = own keys and n = queries:
//   S^T  = K Q^T     [64 x kQueries]  both from shared memory
//   dP^T = V dO^T    [64 x kQueries]  both from shared memory
//   dV  += P^T dO    [64 x D]         P^T from registers
//   dQ   = dS K      [64 x 64]        dS of both warpgroups through shared memory, 128 keys deep;
//                                     warpgroup w takes column half w (D = 128) or query half w (D
//                                     = 64)
//   dK  += dS^T Q    [64 x D]         dS^T from registers
// S^T of the next step is issued while dK runs, dP^T before the exponentials, so that the tensor
// cores have work. After the last step they are issued once more on whatever the tiles hold: nobody
// reads the result, and the loop has no branch around a product.
//
// dQ leaves in bulk float32 additions: every warp copies its 16 x 64 accumulators to shared memory
// as they lie in the registers and adds them to dq_sum, which therefore is in tile order
// (TileOrder); finish_tiles puts the rows right. The sorted entries of Focus have a buffer of their
// own.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/attention/backward_mma.cuh"
#include "fovea/kernels/cuda/attention/backward_rows.cuh"
#include "fovea/kernels/cuda/attention/gather.cuh"
#include "fovea/kernels/cuda/attention/shapes.h"

namespace fovea::kernels::cuda {

struct BackwardMaps {
  TensorMap q, k, v, d_o;
};

template <int D, class Score, class Visible>
struct BackwardWgmma {
  using Shape = BackwardWgmmaShape<D>;
  static constexpr int BN = Shape::kKeys, BM = Shape::kQueries, NT = BM / 8, DT = D / 8;
  static constexpr int kStages = Shape::kStages;
  static constexpr bool kGathers = Visible::kPartialOutput;

  struct Memory {
    uint32_t k, v, q, d_o, ds, sums, rows, kv_full, q_full, q_empty, do_full, do_empty;
    FOVEA_DEVICE Memory() {
      k = (shared_base() + 1023) & ~1023u;
      v = k + Shape::kKeyBytes;
      q = v + Shape::kKeyBytes;
      d_o = q + kStages * Shape::kQueryBytes;
      ds = d_o + kStages * Shape::kQueryBytes;
      sums = ds + kStages * Shape::kScoreBytes;
      rows = sums + Shape::kSumBytes;
      kv_full = rows + kStages * Shape::kRowBytes;
      q_full = kv_full + 8;
      q_empty = q_full + 8 * kStages;
      do_full = q_empty + 8 * kStages;
      do_empty = do_full + 8 * kStages;
    }
  };

  // The steps: query tiles of the first head of the group, of the second, ...
  struct Step {
    int n = 0, tile = 0, h;
    FOVEA_DEVICE explicit Step(int head) : h(head) {}
    FOVEA_DEVICE void advance(int tiles) {
      ++n;
      if (++tile == tiles) {
        tile = 0;
        ++h;
      }
    }
    FOVEA_DEVICE int stage() const { return n % kStages; }
    FOVEA_DEVICE uint32_t parity() const { return (n / kStages) & 1; }
  };

  // The row data of a query tile, by `count` threads: lse2, delta, 1 / temperature (4 bytes a row),
  // set (8 bytes a row).
  static constexpr int kDelta = Shape::kColumnBytes, kScale = 2 * Shape::kColumnBytes,
                       kSet = 3 * Shape::kColumnBytes;
  FOVEA_DEVICE static void load_rows(const Problem& p, const Memory& m, const Place& at, int stage,
                                     int i0, int thread, int count) {
    const int64_t head = int64_t(at.b) * p.heads + at.h;
    const uint32_t to = m.rows + stage * Shape::kRowBytes;
    for (int x = thread; x < BM; x += count) {
      const int row = Visible::query_row(p, at, i0 + x);
      const int64_t padded = head * p.padded + (row < 0 ? p.padded - 1 : row);
      store_shared_float(to + x * 4, load_read_only(p.lse2 + padded));
      store_shared_float(to + kDelta + x * 4, load_read_only(p.delta + padded));
      if constexpr (Score::kPerRow)
        store_shared_float(to + kScale + x * 4,
                           Score::scale(p, at.b, at.h, row < 0 ? p.queries : row));
      if constexpr (Visible::kSets)
        store_shared_8(to + kSet + x * 8, Visible::row_set(p, at, i0 + x));
    }
  }

  FOVEA_DEVICE static void copy_tile(uint32_t to, const TensorMap* map, uint32_t barrier, int rows,
                                     int row, int head, int b) {
    for (int c = 0; c < D; c += 64)
      tensor_copy(to + c / 64 * (rows * 128), map, barrier, c, row, head, b);
  }

  // One warp: tensor copies by lane 0, the row data by all lanes.
  template <class Tiles>
  FOVEA_DEVICE static void produce(const Problem& p, const BackwardMaps& maps, const Memory& m,
                                   Place at, int j0, const Tiles& tiles) {
    const int lane = threadIdx.x % 32, steps = tiles.count * (p.heads / p.kv_heads);
    if (lane == 0) {
      barrier_expect(m.kv_full, 2 * Shape::kKeyBytes);
      copy_tile(m.k, &maps.k, m.kv_full, BN, j0, at.g, at.b);
      copy_tile(m.v, &maps.v, m.kv_full, BN, j0, at.g, at.b);
    }
    for (Step step(at.h); step.n < steps; step.advance(tiles.count)) {
      at.h = step.h;
      const int i0 = tiles[step.tile] * BM;
      const uint32_t offset = step.stage() * Shape::kQueryBytes, barrier = step.stage() * 8;
      barrier_wait(m.q_empty + barrier, step.parity() ^ 1);
      if (lane == 0) {
        barrier_expect(m.q_full + barrier, Shape::kQueryBytes);
        copy_tile(m.q + offset, &maps.q, m.q_full + barrier, BM, i0, at.h, at.b);
      }
      load_rows(p, m, at, step.stage(), i0, lane, 32);
      barrier_arrive(m.q_full + barrier);
      barrier_wait(m.do_empty + barrier, step.parity() ^ 1);
      if (lane == 0) {
        barrier_expect(m.do_full + barrier, Shape::kQueryBytes);
        copy_tile(m.d_o + offset, &maps.d_o, m.do_full + barrier, BM, i0, at.h, at.b);
      }
    }
  }

  // Sorted entries, 128 threads: warps 0 and 1 gather k and q, warps 2 and 3 gather v and d_o.
  template <class Tiles>
  FOVEA_DEVICE static void gather(const Problem& p, const Memory& m, Place at, int j0,
                                  const Tiles& tiles) {
    const int thread = threadIdx.x % 64, steps = tiles.count * (p.heads / p.kv_heads);
    const bool second = threadIdx.x >= 64;
    const auto row_of = [&](int i) { return Visible::query_row(p, at, i); };
    gather_rows<D, BN, 64>(second ? m.v : m.k, head_of(second ? p.v : p.k, at.b, at.g),
                           second ? p.v.row : p.k.row, thread, RowsAhead<BN>(j0, row_of));
    const Rows& from = second ? p.d_o : p.q;
    const uint32_t to = second ? m.d_o : m.q, full = second ? m.do_full : m.q_full,
                   empty = second ? m.do_empty : m.q_empty;
    for (Step step(at.h); step.n < steps; step.advance(tiles.count)) {
      at.h = step.h;
      const int i0 = tiles[step.tile] * BM;
      const RowsAhead<BM> rows(i0, row_of);
      barrier_wait(empty + step.stage() * 8, step.parity() ^ 1);
      gather_rows<D, BM, 64>(to + step.stage() * Shape::kQueryBytes, head_of(from, at.b, at.h),
                             from.row, thread, rows);
      if (!second) load_rows(p, m, at, step.stage(), i0, thread, 64);
      if (step.n == 0) {  // the first tile travels together with k or v
        gather_wait<1>();
        barrier_arrive(m.kv_full);
      }
      gather_wait<0>();
      barrier_arrive(full + step.stage() * 8);
    }
  }

  // acc[64 keys x BM queries] = own rows of the key tile times the query tile^T
  FOVEA_DEVICE static void transposed_scores(float (&acc)[NT][4], uint32_t keys, uint32_t queries) {
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      const uint32_t step = kk % 4 * 32;
      wgmma_ss(acc, matrix_descriptor(keys + kk / 4 * (BN * 128) + step, 16, 1024),
               matrix_descriptor(queries + kk / 4 * (BM * 128) + step, 16, 1024), kk > 0);
    }
  }
  // acc[64 keys x D] += left[64 keys x BM queries] right[BM queries x D]
  FOVEA_DEVICE static void accumulate(float (&acc)[DT][4], const uint32_t (&left)[NT / 2][4],
                                      uint32_t right) {
#pragma unroll
    for (int kk = 0; kk < BM / 16; ++kk)
      wgmma_rs(acc, left[kk], matrix_descriptor(right + kk * (16 * 128), BM * 128, 1024));
  }
  // acc[64 queries x 64 columns] = dS[queries x keys] K[keys x columns]; both tiles have keys as
  // rows
  FOVEA_DEVICE static void query_gradient(float (&acc)[8][4], uint32_t ds, uint32_t k) {
#pragma unroll
    for (int kk = 0; kk < BN / 16; ++kk)
      wgmma_ss<true>(acc, matrix_descriptor(ds + kk * (16 * 128), BN * 128, 1024),
                     matrix_descriptor(k + kk * (16 * 128), BN * 128, 1024), kk > 0);
  }
  // An accumulator block x of 8 columns as part of a left operand.
  FOVEA_DEVICE static void pack_left(uint32_t (&left)[NT / 2][4], int x, const float (&s)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      left[x / 2][x % 2 * 2 + half] = pack(s[2 * half], s[2 * half + 1]);
  }
  FOVEA_DEVICE static void release(uint32_t barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  // s: raw products -> P^T. `key0`: first key of this thread; `rows`: the row data of the query
  // tile.
  template <bool kMasked>
  FOVEA_DEVICE static void probabilities(const Problem& p, const Place& at, float (&s)[NT][4],
                                         int i0, int key0, uint32_t rows) {
    const int t = threadIdx.x % 4;
    const auto head = Score::head(p, at.h);
    typename Visible::Key key[2];
    if constexpr (kMasked) {
      key[0] = Visible::key(p, at, key0);
      key[1] = Visible::key(p, at, key0 + 8);
    }
#pragma unroll
    for (int x = 0; x < NT; ++x) {
      const int column = x * 8 + 2 * t;
      const float2 lse2 = load_shared_float2(rows + column * 4), scale = scales(p, rows, column);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int i = i0 + column + c;
        typename Visible::Row row;
        if constexpr (kMasked) {
          uint64_t set = 0;
          if constexpr (Visible::kSets) set = load_shared_8(rows + kSet + (column + c) * 8);
          row = Visible::row(p, at, i, set);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int e = half * 2 + c, j = key0 + half * 8;
          const float x2 = Score::logit(head, s[x][e], c ? scale.y : scale.x,
                                        Score::kBias ? Visible::distance(p, at, i, j) : 0);
          s[x][e] = exp2_fast(x2 - (c ? lse2.y : lse2.x));
          if constexpr (kMasked) {
            if (!Visible::sees(p, row, key[half], j)) s[x][e] = 0.0f;
          }
        }
      }
    }
  }
  FOVEA_DEVICE static float2 scales(const Problem& p, uint32_t rows, int column) {
    if constexpr (!Score::kPerRow) return {p.scale, p.scale};
    return load_shared_float2(rows + kScale + column * 4);
  }

  // The gate on raw products of a query tile with this warp's 16 keys; `rows` as above.
  FOVEA_DEVICE static void gate(const Problem& p, const Place& at, float (&s)[NT][4], int i0,
                                int key0, uint32_t rows) {
    const int t = threadIdx.x % 4, gr = threadIdx.x % 32 / 4, own = key0 - gr;
    const Reach reach = gate_reach<Visible>(p, at, i0, BM, own, 16);
    if (reach == Reach::near || p.gate == GateKind::weight) return;
    gate_products<Score::kGateChunks>(
        p, at, s, p.gate_key, own, p.gate_query, i0, reach,
        [&](int x, int e) {
          const float2 scale = scales(p, rows, x * 8 + 2 * t);
          return divide_fast(1.0f, (e % 2 ? scale.y : scale.x) * kLog2e);
        },
        [&](int x, int e) {
          return local_keys<Visible>(p, at, i0 + x * 8 + 2 * t + e % 2).has(key0 + e / 2 * 8);
        });
  }

  // dp -> dS^T = P^T (dP^T - delta), times the gain of a cap and the scale of the row, in `ds` and,
  // as rows of keys, at `to` in shared memory. P^T (s) becomes the left operand of dV. A cap takes
  // the logit back from P^T. A gate of weights joins P^T here. Gates' gradients go to of_gates.
  template <GateKind kGate, int kChunks>
  FOVEA_DEVICE static void score_gradient(const Problem& p, const Place& at,
                                          uint32_t (&ds)[NT / 2][4], float (&dp)[NT][4],
                                          float (&s)[NT][4], uint32_t (&left)[NT / 2][4], int i0,
                                          int key0, uint32_t rows, uint32_t to, int local,
                                          Reach reach, float (&of_gates)[kChunks][4]) {
    constexpr bool kGated = kGate != GateKind::none;
    GateOf<Score, Visible, kGate> of_gate{p, at, i0, key0 - int(threadIdx.x) % 32 / 4, reach};
    const int t = threadIdx.x % 4;
    const auto head = Score::head(p, at.h);
    const bool wants_temperature = Score::kPerRow && p.d_temperature != nullptr;
    float* temperature_sum = p.temperature_sum + (int64_t(at.b) * p.heads + at.h) * p.padded + i0;
    float sums[8];
#pragma unroll
    for (int x = 0; x < NT; ++x) {
      const int column = x * 8 + 2 * t;
      const float2 delta = load_shared_float2(rows + kDelta + column * 4);
      float2 lse2{}, scale{};
      if constexpr (Score::kCap || Score::kPerRow || kGate == GateKind::sigmoid_logit)
        lse2 = load_shared_float2(rows + column * 4);
      [[maybe_unused]] float dz[4];
      if constexpr (kGated) {
        if (x % of_gate.kBlocks == 0) of_gate.prepare(x);
      }
      if constexpr (Score::kPerRow) scale = scales(p, rows, column);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float factor = s[x][2 * half + c], d = dp[x][2 * half + c] - (c ? delta.y : delta.x);
          [[maybe_unused]] float gain = 1.0f;
          if constexpr (kGated) {
            const int e = 2 * half + c;
            float unbiased = 0.0f;
            if constexpr (kGate == GateKind::sigmoid_logit)
              unbiased =
                  Score::unbiased(head, log2_fast(factor) + (c ? lse2.y : lse2.x),
                                  Visible::distance(p, at, i0 + column + c, key0 + half * 8));
            dz[e] = of_gate.element(x, e, s[x][e], d, unbiased, gain);
          }
          [[maybe_unused]] const float ungated = factor;
          if constexpr (kGate == GateKind::weight) factor = s[x][2 * half + c];
          if constexpr (Score::kCap || Score::kPerRow) {
            const int i = i0 + column + c, j = key0 + half * 8;
            const int distance = Score::kBias ? Visible::distance(p, at, i, j) : 0;
            float log2_weight = log2_fast(ungated);
            const float of_row = c ? lse2.y : lse2.x;
            if constexpr (kGate == GateKind::log_sigmoid)
              log2_weight = of_gate.ungated(x, 2 * half + c, log2_weight);
            float scaled = 0.0f;
            if constexpr (Score::kPerRow)
              scaled = factor > 0.0f ? Score::scaled(head, log2_weight, of_row, distance) : 0.0f;
            if constexpr (Score::kCap) factor *= Score::gain(head, log2_weight + of_row, distance);
            if constexpr (Score::kPerRow) {
              const float add = factor * d * scaled;
              sums[x % 4 * 2 + c] = half == 0 ? add : sums[x % 4 * 2 + c] + add;
              factor *= c ? scale.y : scale.x;
            }
          }
          dp[x][2 * half + c] = factor * d * gain;
        }
      }
      if (wants_temperature && x % 4 == 3) add_column_sums(temperature_sum + (x - 3) * 8, sums);
      if constexpr (kGated) of_gate.add(x, dz, of_gates);
      pack_left(left, x, s[x]);
      pack_left(ds, x, dp[x]);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_shared(to + x / 8 * (BN * 128) + (local + half * 8) * 128 +
                         ((x % 8 ^ (local & 7)) << 4) + t * 4,
                     ds[x / 2][x % 2 * 2 + half]);
    }
  }

  // This warp's 16 x 64 block of dQ, added at `to` (tile order). `stage`: 4 KiB of this warp.
  FOVEA_DEVICE static void add_queries(float* to, uint32_t stage, const float (&dq)[8][4]) {
    const int lane = threadIdx.x % 32;
    if (lane == 0) bulk_wait_read();
    sync_warp();
#pragma unroll
    for (int x = 0; x < 8; ++x)
      store_shared_4(stage + x * 512 + lane * 16, dq[x][0], dq[x][1], dq[x][2], dq[x][3]);
    fence_async();
    sync_warp();
    if (lane == 0) bulk_add(to, stage, 4096);
  }

  template <class Tiles>
  FOVEA_DEVICE static void consume(const Problem& p, const Memory& m, Place at, int j0,
                                   const Tiles& tiles) {
    const int wg = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
    const int gr = lane / 4, t = lane % 4, local = warp * 16 + gr;  // first key of this thread
    const int steps = tiles.count * (p.heads / p.kv_heads);
    float dk[DT][4] = {}, dv[DT][4] = {};
    float of_gates[Score::kGated ? Score::kGateChunks : 1][4] = {};
    if (steps > 0) {
      const uint32_t keys = m.k + wg * (64 * 128), values = m.v + wg * (64 * 128);
      const uint32_t k_part = m.k + (D == 128 ? wg * (BN * 128) : 0),
                     ds_part = m.ds + (D == 64 ? wg * (BN * 128) : 0);
      const uint32_t stage_of_sums = m.sums + warp * 4096;
      float s[NT][4], dp[NT][4], dq[8][4];
      uint32_t left[NT / 2][4], ds[NT / 2][4];

      // S^T of a step -> P^T; then dP^T is awaited.
      const auto weigh = [&](const Step& of, bool more) {
        if (more) {
          const int i0 = tiles[of.tile] * BM;
          const uint32_t rows = m.rows + of.stage() * Shape::kRowBytes;
          if constexpr (Score::kGated) gate(p, at, s, i0, j0 + local, rows);
          if (Visible::full(p, at, i0, j0, BM, BN))
            probabilities<false>(p, at, s, i0, j0 + local, rows);
          else
            probabilities<true>(p, at, s, i0, j0 + local, rows);
        }
        wgmma_wait<0>();
        wgmma_pin(dp);
      };

      barrier_wait(m.kv_full, 0);
      barrier_wait(m.q_full, 0);
      wgmma_pin(s);
      wgmma_fence();
      transposed_scores(s, keys, m.q);
      wgmma_commit();
      barrier_wait(m.do_full, 0);
      wgmma_pin(dp);
      transposed_scores(dp, values, m.d_o);
      wgmma_commit();
      wgmma_wait<1>();
      wgmma_pin(s);
      Step step(at.h);
      weigh(step, true);

#pragma unroll 1
      while (step.n < steps) {
        const int stage = step.stage(), i0 = tiles[step.tile] * BM;
        const uint32_t ds_tile = stage * Shape::kScoreBytes;
        const auto gradient = [&](auto gate, Reach reach) {
          score_gradient<decltype(gate)::value>(p, at, ds, dp, s, left, i0, j0 + local,
                                                m.rows + stage * Shape::kRowBytes, m.ds + ds_tile,
                                                local, reach, of_gates);
        };
        if constexpr (Score::kGated) {
          const Reach reach = gate_reach<Visible>(p, at, i0, BM, j0 + warp * 16, 16);
          with_gate(p, reach, [&](auto gate) { gradient(gate, reach); });
        } else {
          gradient(GateIs<GateKind::none>{}, Reach::near);
        }
        fence_async();
        const int64_t h = int64_t(at.b) * p.heads + step.h;
        float* to = (kGathers ? p.dq_entries + h * p.entries * D : p.dq_sum + h * p.padded * D) +
                    TileOrder<D>::tile(i0) + warp * 1024;
        wgmma_pin(dv);
        wgmma_fence();
        accumulate(dv, left, m.d_o + stage * Shape::kQueryBytes);
        wgmma_commit();
        named_sync(1, 256);  // dS of both warpgroups is there; their dQ of the step before is done
        wgmma_pin(dq);
        wgmma_pin(dk);
        wgmma_fence();
        query_gradient(dq, ds_part + ds_tile, k_part);
        wgmma_commit();
        accumulate(dk, ds, m.q + stage * Shape::kQueryBytes);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_pin(dv);
        wgmma_pin(dq);
        release(m.do_empty + stage * 8);
        add_queries(to, stage_of_sums, dq);

        step.advance(tiles.count);
        const bool more = step.n < steps;
        at.h = step.h;
        if (more) barrier_wait(m.q_full + step.stage() * 8, step.parity());
        wgmma_pin(s);
        transposed_scores(s, keys, m.q + step.stage() * Shape::kQueryBytes);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_pin(dk);
        release(m.q_empty + stage * 8);
        if (more) barrier_wait(m.do_full + step.stage() * 8, step.parity());
        wgmma_pin(dp);
        transposed_scores(dp, values, m.d_o + step.stage() * Shape::kQueryBytes);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_pin(s);
        weigh(step, more);
      }
      if (lane == 0) bulk_wait();
    }

    if constexpr (Score::kGated) store_key_gates(p, at, j0 + warp * 16, of_gates);
    const float factor = Score::kPerRow ? 1.0f : p.scale;
    if constexpr (Visible::kAddsToKeys) {
      const int row = Visible::key_row(p, at, j0 + local + (t & 1) * 8);
      const int64_t to = ((int64_t(at.b) * p.kv_heads + at.g) * p.keys + row) * D;
#pragma unroll
      for (int x = 0; x < DT; ++x) {
        add_block(row < 0 ? nullptr : p.dk_sum + to, x * 8, dk[x], t, factor);
        add_block(row < 0 ? nullptr : p.dv_sum + to, x * 8, dv[x], t, 1.0f);
      }
    } else {
      named_sync(1, 256);  // nobody reads k and v any more
      const uint32_t stage = warp * 16 * D * 2;
      const int row = j0 + warp * 16;
      store_block<D>(head_of_mutable(p.dk, at.b, at.g), p.dk.row, row, p.keys, m.k + stage, dk,
                     factor);
      store_block<D>(head_of_mutable(p.dv, at.b, at.g), p.dv.row, row, p.keys, m.v + stage, dv,
                     1.0f);
    }
  }

  // Grid (key tiles x heads_together, key/value heads / heads_together, batch): the long walks of
  // heads_together heads come first, then the shorter ones.
  FOVEA_DEVICE static void run(const Problem& p, const BackwardMaps& maps, int heads_together) {
    const int g = int(blockIdx.y) * heads_together + int(blockIdx.x) % heads_together;
    const Place at{int(blockIdx.z), g * (p.heads / p.kv_heads), g};
    int tile = int(blockIdx.x) / heads_together, part = -1;
    if constexpr (Visible::kMerges) {  // blocks past the key tiles: parts of the walks of the sinks
      const int past = tile - tiles_for(p.keys, BN), parts = Visible::parts(p, BM);
      if (past >= 0) {
        tile = past / parts;
        part = past % parts;
      }
    }
    const int j0 = tile * BN;
    auto tiles = Visible::query_tiles(p, at, j0, BM, BN);
    if constexpr (Visible::kMerges) tiles = Visible::part_of(p, tiles, part, j0, BM, BN);
    if (Visible::kAddsToKeys && tiles.count == 0) return;
    const Memory m;
    if (threadIdx.x == 0) {
      barrier_init(m.kv_full, kGathers ? 128 : 1);
      for (int s = 0; s < kStages; ++s) {
        barrier_init(m.q_full + 8 * s, kGathers ? 64 : 33);
        barrier_init(m.do_full + 8 * s, kGathers ? 64 : 1);
        barrier_init(m.q_empty + 8 * s, 8);
        barrier_init(m.do_empty + 8 * s, 8);
      }
      barrier_fence_init();
    }
    sync_block();
    if (threadIdx.x < 128) {
      registers_down<kGathers ? 40 : 24>();
      if (tiles.count > 0) {
        if constexpr (kGathers)
          gather(p, m, at, j0, tiles);
        else if (threadIdx.x < 32)
          produce(p, maps, m, at, j0, tiles);
      }
    } else {
      registers_up<kGathers ? 232 : 240>();
      consume(p, m, at, j0, tiles);
    }
  }
};

template <int D, class Score, class Visible>
FOVEA_KERNEL(BackwardWgmmaShape<D>::kThreads, 1)
backward_wgmma_kernel(const __grid_constant__ Problem p, const __grid_constant__ BackwardMaps maps,
                      int heads_together) {
  BackwardWgmma<D, Score, Visible>::run(p, maps, heads_together);
}

}  // namespace fovea::kernels::cuda
