// The next token of each text from its logits (kernels/common/token_draws.h): a block a text.
//
// A thread sums the weights of neighbouring tokens. The first warp walks over these sums, then over
// the weights of the one thread whose sum the draw falls into.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/decode/primitives.cuh"
#include "fovea/kernels/cuda/decode/problem.h"

namespace fovea::kernels::cuda {

constexpr int kDrawThreads = 512, kDrawWarps = kDrawThreads / 32;

/// The largest logit and its token, the first of several; `bad`: some logit is NaN. Numbers of
/// tokens are below 2^24, so float32 holds them.
struct TopLogit {
  float logit = -infinity(), token = 0.0f, bad = 0.0f;

  FOVEA_DEVICE void take(float other, float at, float other_bad) {
    bad = max_of(bad, other_bad);
    if (other < logit || (other == logit && at >= token)) return;
    logit = other, token = at;
  }
};

/// The work of one block; every thread has one.
class DrawBlock {
 public:
  FOVEA_DEVICE explicit DrawBlock(const DrawParameters& p)
      : p_(p),
        row_(p.logits + static_cast<int64_t>(blockIdx.x) * p.row),
        draw_(p.draws[blockIdx.x]),
        each_((p.tokens + kDrawThreads - 1) / kDrawThreads) {}

  FOVEA_DEVICE void run() const {
    const TopLogit top = find_top();
    if (top.bad > 0.0f) return choose(-1);
    const bool finite = absolute(top.logit) < infinity();
    if (draw_.temperature == 0.0 || !finite) return choose(static_cast<int>(top.token));
    const double sharpness = 1.0 / draw_.temperature;
    const float factor = static_cast<float>(sharpness < 1e30 ? sharpness : 1e30);
    const int first = static_cast<int>(threadIdx.x) * each_;
    float sum = 0.0f;
    for (int n = first; n < first + each_ && n < p_.tokens; ++n)
      sum += weight(n, top.logit, factor);
    store_shared_float(sums_ + threadIdx.x * 4, sum);
    sync_block();
    if (threadIdx.x < 32) walk(top, factor);
  }

 private:
  FOVEA_DEVICE void choose(int token) const {
    if (threadIdx.x == 0) p_.chosen[blockIdx.x] = token;
  }
  FOVEA_DEVICE float weight(int n, float top, float factor) const {
    return exp_fast((row_[n] - top) * factor);
  }

  FOVEA_DEVICE TopLogit find_top() const {
    TopLogit top;
    for (int n = threadIdx.x; n < p_.tokens; n += kDrawThreads) {
      const float x = row_[n];
      top.bad = x == x ? top.bad : 1.0f;
      if (x > top.logit || (n == static_cast<int>(threadIdx.x) && x == x)) {
        top.logit = x, top.token = static_cast<float>(n);
      }
    }
    if (static_cast<int>(threadIdx.x) >= p_.tokens) top.token = 1e9f;  // has none
    join_lanes(top);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) {
      store_shared_float(tops_ + warp * 12, top.logit);
      store_shared_float(tops_ + warp * 12 + 4, top.token);
      store_shared_float(tops_ + warp * 12 + 8, top.bad);
    }
    sync_block();
    const uint32_t of_lane = tops_ + lane % kDrawWarps * 12;
    TopLogit all{load_shared_number(of_lane), load_shared_number(of_lane + 4),
                 load_shared_number(of_lane + 8)};
    join_lanes(all);
    return all;
  }
  FOVEA_DEVICE static void join_lanes(TopLogit& top) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      const float logit = shuffle_xor(top.logit, mask), token = shuffle_xor(top.token, mask),
                  bad = shuffle_xor(top.bad, mask);
      top.take(logit, token, bad);
    }
  }

  // By the first warp, on sums of 32 threads, then of one, then on single weights.
  FOVEA_DEVICE void walk(const TopLogit& top, float factor) const {
    const int lane = threadIdx.x;
    if (lane < kDrawWarps) {
      float sum = 0.0f;
      for (int n = 0; n < 32; ++n) sum += load_shared_number(sums_ + (lane * 32 + n) * 4);
      store_shared_float(tops_ + lane * 4, sum);
    }
    sync_warp();
    double left = 0.0;
    for (int n = 0; n < kDrawWarps; ++n) left += load_shared_number(tops_ + n * 4);
    left *= draw_.uniform;
    const int group = pass(tops_, kDrawWarps, left);
    const int thread = group * 32 + pass(sums_ + group * 128, 32, left);
    const int first = thread * each_;
    const int count = p_.tokens - first < each_ ? p_.tokens - first : each_;
    for (int n = lane; n < count; n += 32)
      store_shared_float(weights_ + n * 4, weight(first + n, top.logit, factor));
    sync_warp();
    int chosen = static_cast<int>(top.token);
    for (int n = 0; n < count; ++n) {
      const float w = load_shared_number(weights_ + n * 4);
      if (w > 0.0f) chosen = first + n;  // rounding must not end on an impossible one
      left -= w;
      if (left < 0.0) break;
    }
    choose(chosen);
  }
  // Which of `count` sums the draw falls into; `left` is what then remains of it.
  FOVEA_DEVICE static int pass(uint32_t sums, int count, double& left) {
    int last = 0;  // that has any weight
    double before = left;
    for (int n = 0; n < count; ++n) {
      const float sum = load_shared_number(sums + n * 4);
      if (sum <= 0.0f) continue;
      last = n, before = left;
      if (left < sum) return n;
      left -= sum;
    }
    left = before;
    return last;
  }

  const DrawParameters& p_;
  const float* const row_;
  const TokenDraw draw_;
  const int each_;  // tokens of a thread
  const uint32_t sums_ = shared_base(), tops_ = sums_ + kDrawThreads * 4,
                 weights_ = tops_ + kDrawWarps * 12;
};

FOVEA_KERNEL(kDrawThreads, 1) draw_kernel(const __grid_constant__ DrawParameters p) {
  DrawBlock(p).run();
}

inline int draw_shared_bytes(int tokens) {
  const int each = (tokens + kDrawThreads - 1) / kDrawThreads;
  return kDrawThreads * 4 + kDrawWarps * 12 + each * 4;
}

}  // namespace fovea::kernels::cuda
