// The residual stream between two products: what a half of a block leaves in it, and its norm
// (spec 7.1, 7.2), one row after the other by all threads of a block.
//
// Roundings are those of the layers' operations: every addend, sum and norm is bfloat16.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/decode/primitives.cuh"
#include "fovea/kernels/cuda/decode/problem.h"

namespace fovea::kernels::cuda {

constexpr int kDecodeThreads = 256, kDecodeWarps = kDecodeThreads / 32;
/// The sum of x of all threads, to all of them.
FOVEA_DEVICE float block_sum(float x, uint32_t scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  x = warp_sum(x);
  sync_block();  // the last sum has been read
  if (lane == 0) store_shared_float(scratch + warp * 4, x);
  sync_block();
  float sum = 0.0f;
  for (int w = 0; w < kDecodeWarps; ++w) sum += load_shared_number(scratch + w * 4);
  return sum;
}

/// Columns 2n, 2n + 1 of a row that stands in shared memory, pairs of a thread one after the other.
template <class F>
FOVEA_DEVICE void each_pair(int width, const F& f) {
  for (int n = threadIdx.x; n < width / 2; n += kDecodeThreads) f(n);
}

/// The row at `row` (shared memory, bfloat16) by its norm. A thread reads what it wrote itself.
FOVEA_DEVICE void norm_row(const RowNorm& norm, float eps, int width, uint32_t row,
                           uint32_t scratch) {
  if (norm.form == RowNorm::Form::none) return;
  float mean = 0.0f;
  if (norm.form == RowNorm::Form::layer) {
    float sum = 0.0f;
    each_pair(width, [&](int n) {
      const float2 x = unpack(load_shared(row + n * 4));
      sum += x.x + x.y;
    });
    mean = block_sum(sum, scratch) / width;
  }
  float squares = 0.0f;
  each_pair(width, [&](int n) {
    const float2 x = unpack(load_shared(row + n * 4));
    squares += (x.x - mean) * (x.x - mean) + (x.y - mean) * (x.y - mean);
  });
  const float scale = 1.0f / exact_sqrt(block_sum(squares, scratch) / width + eps);
  each_pair(width, [&](int n) {
    float2 x = unpack(load_shared(row + n * 4));
    x.x = (x.x - mean) * scale, x.y = (x.y - mean) * scale;
    if (norm.weight != nullptr) x.x *= norm.weight[2 * n], x.y *= norm.weight[2 * n + 1];
    if (norm.bias != nullptr) x.x += norm.bias[2 * n], x.y += norm.bias[2 * n + 1];
    store_shared(row + n * 4, pack(x.x, x.y));
  });
}

/// tau of a row from its norm y (TokenTemperature), by all threads.
FOVEA_DEVICE void find_tau(const StreamParameters& p, int r, uint32_t y, uint32_t scratch) {
  const TokenTemperature& t = p.temperature;
  float raw = t.bias[0];
  if (t.weight != nullptr) {
    float product = 0.0f;
    each_pair(p.width, [&](int n) {
      const float2 x = unpack(load_shared(y + n * 4));
      product += x.x * t.weight[2 * n] + x.y * t.weight[2 * n + 1];
    });
    double score = block_sum(product, scratch);
    if (t.prefix) {
      const int64_t position = p.step->tokens[r].position;
      double* const sum = p.step->sequences[p.layer * p.rows + r].temperature_sum;
      score += position > 0 ? sum[-1] : 0.0;
      if (threadIdx.x == 0) *sum = score;
      score /= static_cast<double>(position + 1);
    }
    raw += static_cast<float>(score);
  }
  const auto low = static_cast<float>(t.bounds.low), high = static_cast<float>(t.bounds.high);
  const float tau = t.bounds.sigmoid ? low + (high - low) / (1.0f + exp_fast(-raw))
                                     : min_of(max_of(raw, low), high);
  if (threadIdx.x == 0) p.tau[r] = tau;
}

/// Row r: the sum goes to `p.sum` where `keeps`, its norm to shared memory at `row`.
FOVEA_DEVICE void stream_row(const StreamParameters& p, int r, uint32_t row, uint32_t scratch,
                             bool keeps) {
  const auto pairs_of = [&](const uint16_t* x) {
    return reinterpret_cast<const uint32_t*>(x + static_cast<int64_t>(r) * p.width);
  };
  const uint32_t* const x = pairs_of(p.x != nullptr ? p.x : p.step->x);
  const bool joins = p.first != nullptr;
  if (joins) {
    each_pair(p.width, [&](int n) {
      float2 sum = unpack(pairs_of(p.first)[n]);
      if (p.second != nullptr) {
        const float2 other = unpack(pairs_of(p.second)[n]);
        sum.x += other.x, sum.y += other.y;
      }
      if (p.norm_of_sum) {
        sum = unpack(pack(sum.x, sum.y));
        const float2 old = unpack(x[n]);
        sum.x += old.x, sum.y += old.y;
      }
      store_shared(row + n * 4, pack(sum.x, sum.y));
    });
    norm_row(p.after, p.eps, p.width, row, scratch);
  }
  each_pair(p.width, [&](int n) {
    uint32_t sum = joins ? load_shared(row + n * 4) : x[n];
    if (joins && !p.norm_of_sum) {
      const float2 addend = unpack(sum), old = unpack(x[n]);
      sum = pack(old.x + addend.x, old.y + addend.y);
    }
    store_shared(row + n * 4, sum);
    if (keeps && p.sum != nullptr)
      reinterpret_cast<uint32_t*>(p.sum + static_cast<int64_t>(r) * p.width)[n] = sum;
  });
  norm_row(p.before, p.eps, p.width, row, scratch);
  if (keeps && p.temperature.bias != nullptr) find_tau(p, r, row, scratch);
}

/// A block a row: for steps of many rows, where blocks of products would do it again and again.
FOVEA_KERNEL(kDecodeThreads, 1) stream_kernel(const __grid_constant__ StreamParameters p) {
  start_dependents();
  wait_for_previous();
  const uint32_t scratch = shared_base(), row = scratch + 64;
  const int r = blockIdx.x;
  stream_row(p, r, row, scratch, true);
  auto* const y = reinterpret_cast<uint32_t*>(p.y + static_cast<int64_t>(r) * p.width);
  each_pair(p.width, [&](int n) { y[n] = load_shared(row + n * 4); });
}

}  // namespace fovea::kernels::cuda
