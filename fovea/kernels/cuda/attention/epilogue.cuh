// Epilogue of the forward pass: normalise, sink logit, merge partial results, store o and lse.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/attention/softmax.cuh"
#include "fovea/kernels/cuda/attention/tile.cuh"

namespace fovea::kernels::cuda {

// Adds the partial results of the rows (their groups): o becomes sum_s e^(lse_s - high) o_s, and
// gain what normalises it. All rows of a thread together, so that their loads overlap.
template <int MT, int DT>
FOVEA_DEVICE void merge_partials(const Problem& p, const Place& at, const int (&row)[2 * MT],
                                 float (&o)[MT][DT][4], float (&gain)[2 * MT],
                                 float (&lse2)[2 * MT]) {
  constexpr int kRows = 2 * MT;
  const float* partial_lse = p.partial_lse + (int64_t(at.b) * p.heads + at.h) * p.slots * p.queries;
  const uint16_t* partial = head_of(p.partial, at.b, at.h) + 2 * (threadIdx.x % 4);
  int slots[kRows], most = 0;
  float high[kRows], total[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    slots[r] = row[r] < 0 ? 0 : LocalRest::slots_of(p, at, row[r]);
    most = max_of(most, slots[r]);
    high[r] = lse2[r];
  }
  const auto lse2_of = [&](int r, int s) {
    return s < slots[r] ? partial_lse[int64_t(s) * p.queries + row[r]] * kLog2e : -infinity();
  };
  for (int s = 0; s < most; ++s)
#pragma unroll
    for (int r = 0; r < kRows; ++r) high[r] = max_of(high[r], lse2_of(r, s));
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    total[r] = exp2_fast(lse2[r] - high[r]);
#pragma unroll
    for (int x = 0; x < DT; ++x)
#pragma unroll
      for (int e = 0; e < 2; ++e) o[r / 2][x][(r % 2) * 2 + e] *= gain[r] * total[r];
  }
  for (int s = 0; s < most; ++s)
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float weight = exp2_fast(lse2_of(r, s) - high[r]);
      const uint16_t* from = partial + (int64_t(s) * p.queries + row[r]) * p.partial.row;
      total[r] += weight;
#pragma unroll
      for (int x = 0; x < DT; ++x) {
        const uint32_t word = s < slots[r] ? *reinterpret_cast<const uint32_t*>(from + x * 8) : 0;
        const float2 add = unpack(word);
        o[r / 2][x][(r % 2) * 2] += weight * add.x;
        o[r / 2][x][(r % 2) * 2 + 1] += weight * add.y;
      }
    }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    gain[r] = 1.0f / total[r];
    lse2[r] = high[r] + log2_fast(total[r]);
  }
}

// `stage`: shared memory of this warp, 16*MT rows of D elements that nobody else reads any more.
// `first_tile_row`: tile row of the warp's row 0.
template <int D, class Visible, int MT, class Softmax>
FOVEA_DEVICE void finish(const Problem& p, const Place& at, uint32_t stage, int first_tile_row,
                         float (&o)[MT][D / 8][4], const Softmax& softmax) {
  const int lane = threadIdx.x % 32, gr = lane / 4, t = lane % 4;
  const bool has_sink = !Visible::kPartialOutput && !Visible::kMerges && p.sink_logit;
  const float sink2 = has_sink ? load_read_only(p.sink_logit + at.h) * kLog2e : -infinity();
  const Rows& out = Visible::kPartialOutput ? p.partial : p.o;
  float* lse = Visible::kPartialOutput
                   ? p.partial_lse + (int64_t(at.b) * p.heads + at.h) * p.slots * p.queries
                   : p.lse + (int64_t(at.b) * p.heads + at.h) * p.queries;
  const auto store_row = [&](int i) {
    if constexpr (Visible::kPartialOutput)
      return Visible::output_row(p, at, i);
    else
      return Visible::query_row(p, at, i);
  };
  int row[2 * MT];
  float gain[2 * MT], lse2[2 * MT];
#pragma unroll
  for (int r = 0; r < 2 * MT; ++r) {
    const float sum = softmax.total(r), top2 = softmax.maximum2(r);
    row[r] = store_row(softmax.row_of(r));
    lse2[r] = sum > 0.0f ? top2 + log2_fast(sum) : -infinity();
    gain[r] = sum > 0.0f ? 1.0f / sum : 0.0f;
    if (has_sink) {
      const float high = max_of(lse2[r], sink2);
      const float total = high + log2_fast(exp2_fast(lse2[r] - high) + exp2_fast(sink2 - high));
      gain[r] = sum > 0.0f ? exp2_fast(top2 - total) : 0.0f;
      lse2[r] = total;
    }
  }
  if constexpr (Visible::kMerges) merge_partials(p, at, row, o, gain, lse2);
#pragma unroll
  for (int r = 0; r < 2 * MT; ++r)
    if (t == 0 && row[r] >= 0) lse[row[r]] = lse2[r] * kLn2;

  // Rows through shared memory, so that stores are of 16 bytes. packed_pair: two columns.
  const auto store = [&](const Rows& to, const auto& packed_pair) {
#pragma unroll
    for (int r = 0; r < 2 * MT; ++r) {
      const int local = (r / 2) * 16 + (r % 2) * 8 + gr;
#pragma unroll
      for (int x = 0; x < D / 8; ++x)
        store_shared(stage + local * D * 2 + ((x ^ Swizzle<D>::of(local)) << 4) + t * 4,
                     packed_pair(o[r / 2][x][(r % 2) * 2] * gain[r],
                                 o[r / 2][x][(r % 2) * 2 + 1] * gain[r]));
    }
    sync_warp();
    uint16_t* head = head_of_mutable(to, at.b, at.h);
    constexpr int kChunks = D / 8;
    for (int n = lane; n < 16 * MT * kChunks; n += 32) {
      const int local = n / kChunks, chunk = n % kChunks;
      const int row = store_row(first_tile_row + local);
      const uint4 value =
          load_shared_16(stage + local * D * 2 + ((chunk ^ Swizzle<D>::of(local)) << 4));
      if (row >= 0) *reinterpret_cast<uint4*>(head + row * to.row + chunk * 8) = value;
    }
  };
  store(out, [](float a, float b) { return pack(a, b); });
  if (Visible::kPartialOutput || p.o_rest.data == nullptr) return;
  sync_warp();
  store(p.o_rest, [](float a, float b) {
    const float2 rounded = unpack(pack(a, b));
    return pack(a - rounded.x, b - rounded.y);
  });
}

}  // namespace fovea::kernels::cuda
