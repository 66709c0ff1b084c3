// Attention of one token of each sequence over its cache (spec 4, 10; the rows of SequenceNumbers),
// with the token's queries and keys normed and rotated (6, 7.3) and its key and value written.
//
// A block is up to four query heads of a key head, one sequence and one part of the keys. A warp
// reads kKeys keys at a time, kLanes lanes each, 16 bytes a lane, and keeps softmax and sum of
// values of its lanes' keys. The block that ends last adds the parts of all blocks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/decode/primitives.cuh"
#include "fovea/kernels/cuda/decode/problem.h"

namespace fovea::kernels::cuda {

constexpr int kDecodeHeads = 4;  ///< of a block, at most; a warp norms and rotates each
constexpr int kAttentionWarps = 4, kAttentionThreads = 32 * kAttentionWarps;
/// Keys of a lane whose loads are in flight together.
constexpr int kKeysAhead = 4;

/// cos and sin of the numbers lane, lane + 32, ... of a head.
template <int kWidth>
struct LaneRotation {
  static constexpr int kNumbers = kWidth / 32;
  float cos[kNumbers], sin[kNumbers];

  FOVEA_DEVICE LaneRotation(const DecodeAttentionParameters& p, const TokenNumbers& token) {
    const int half = p.rotary / 2;
#pragma unroll
    for (int n = 0; n < kNumbers; ++n) {
      const int i = threadIdx.x % 32 + 32 * n, at = i < half ? i : i - half;
      const bool rotated = i < 2 * half;
      cos[n] = rotated ? token.cos[token.position * half + at] : 1.0f;
      sin[n] = rotated ? token.sin[token.position * half + at] : 0.0f;
    }
  }
};

/// A head of a token, normed and rotated: its numbers one by one. All lanes of a warp call it.
template <int kWidth>
class PlacedHead {
 public:
  FOVEA_DEVICE PlacedHead(const DecodeAttentionParameters& p, const LaneRotation<kWidth>& rotation,
                          const uint16_t* head, const float* gain, float length)
      : p_(p), rotation_(rotation), head_(head), gain_(gain) {
    if (p.head_norm == HeadNorm::none) return;
    float sum = 0.0f, squares = 0.0f;
    const int lane = threadIdx.x % 32, d = p.head_dim;
    if (p.head_norm == HeadNorm::layer) {
      for (int i = lane; i < d; i += 32) sum += number(head[i]);
      mean_ = warp_sum(sum) / d;
    }
    for (int i = lane; i < d; i += 32) {
      const float x = number(head[i]) - mean_;
      squares += x * x;
    }
    squares = warp_sum(squares);
    scale_ = p.head_norm == HeadNorm::length ? length / exact_sqrt(max_of(squares, 1e-24f))
                                             : 1.0f / exact_sqrt(squares / d + p.eps);
  }

  /// Number lane + 32 n, rounded; 0 beyond the head.
  FOVEA_DEVICE float at(int n) const {
    const int half = p_.rotary / 2, i = threadIdx.x % 32 + 32 * n;
    if (i >= p_.head_dim) return 0.0f;
    if (i >= 2 * half) return rounded(normed(i));
    const bool low = i < half;
    const float a = normed(low ? i : i - half), b = normed(low ? half + i : i);
    return rounded(low ? a * rotation_.cos[n] - b * rotation_.sin[n]
                       : a * rotation_.sin[n] + b * rotation_.cos[n]);
  }

 private:
  FOVEA_DEVICE float normed(int i) const {
    const float x = number(head_[i]);
    switch (p_.head_norm) {
      case HeadNorm::rms:  // one operation with the rotation
        return x * scale_ * gain_[i];
      case HeadNorm::layer:
        return rounded(gain_ != nullptr ? (x - mean_) * scale_ * gain_[i] : (x - mean_) * scale_);
      case HeadNorm::length:
        return rounded(x * scale_);
      default:
        return x;
    }
  }

  const DecodeAttentionParameters& p_;
  const LaneRotation<kWidth>& rotation_;
  const uint16_t* const head_;
  const float* const gain_;
  float mean_ = 0.0f, scale_ = 1.0f;
};

/// Running softmax and sum of values of a lane: 8 numbers of a head.
struct LaneSum {
  float top = -1e30f, weights = 0.0f, values[8] = {};

  FOVEA_DEVICE void rescale(float new_top) {
    const float factor = exp_fast(top - new_top);
    weights *= factor;
#pragma unroll
    for (int e = 0; e < 8; ++e) values[e] *= factor;
    top = new_top;
  }
  FOVEA_DEVICE void add(float score, const float (&v)[8]) {
    if (score > top) rescale(score);
    const float w = exp_fast(score - top);
    weights += w;
#pragma unroll
    for (int e = 0; e < 8; ++e) values[e] += w * v[e];
  }
};

FOVEA_DEVICE void unpack_8(const uint4& bits, float (&x)[8]) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float2 two = unpack(words[n]);
    x[2 * n] = two.x, x[2 * n + 1] = two.y;
  }
}

/// Where a key of a sequence stands.
struct KeyPlace {
  const uint16_t *key, *value;
  int distance;  ///< of the token from it, in positions
};
FOVEA_DEVICE KeyPlace place_of(const RunNumbers* runs, const SequenceNumbers& s, int64_t position,
                               int j, bool far, int head) {
  const int distance = static_cast<int>(position) - (j + (far ? s.far_shift : s.near_shift));
  for (int n = 0; n < s.runs; ++n) {
    const RunNumbers& run = runs[s.first_run + n];
    if (j < run.end)
      return {run.keys + static_cast<int64_t>(j) * run.key_row +
                  static_cast<int64_t>(head) * run.key_head,
              run.values + static_cast<int64_t>(j) * run.value_row +
                  static_cast<int64_t>(head) * run.value_head,
              distance};
  }
  return {
      s.keys + static_cast<int64_t>(j) * s.key_row + static_cast<int64_t>(head) * s.key_head,
      s.values + static_cast<int64_t>(j) * s.value_row + static_cast<int64_t>(head) * s.value_head,
      distance};
}

FOVEA_DEVICE float score_of(const ScoreParameters& rule, float product, float scale, int head,
                            int distance) {
  float s = product * scale;
  if (rule.soft_cap > 0.0f) s = rule.soft_cap * tanh_exact(s / rule.soft_cap);
  if (rule.alibi != nullptr) s -= rule.alibi[head] * distance;
  if (rule.distance_bias != nullptr) {
    int64_t n = distance - rule.bias_first;
    n = n < 0 ? 0 : n >= rule.bias_count ? rule.bias_count - 1 : n;
    s += rule.distance_bias[head * rule.bias_count + n];
  }
  return s;
}

template <int kLanes>
struct DecodeAttentionShape {
  static constexpr int kWidth = 8 * kLanes;                 ///< head size, at most
  static constexpr int kHeads = kDecodeHeads * kWidth * 4;  ///< queries in float32
  static constexpr int kToken = 2 * kWidth * 4;             ///< the token's key and value
  static constexpr int kParts = kAttentionWarps * kDecodeHeads * (kWidth + 2) * 4;
  static constexpr int kShared = kHeads + kToken + kParts + 64;
};

/// kReps: heads of a block that are computed, 1 or kDecodeHeads.
template <int kLanes, int kReps>
FOVEA_KERNEL(kAttentionThreads, 1)
decode_attention_kernel(const __grid_constant__ DecodeAttentionParameters p) {
  using Shape = DecodeAttentionShape<kLanes>;
  constexpr int kKeys = 32 / kLanes;
  start_dependents();
  const int d = p.head_dim, group = p.heads / p.kv_heads;
  const int chunks = (group + kReps - 1) / kReps;
  const int split = blockIdx.x, kv_head = blockIdx.y / chunks, chunk = blockIdx.y % chunks;
  const int r = blockIdx.z;
  const int first_head = kv_head * group + chunk * kReps;
  const int heads = kReps < group - chunk * kReps ? kReps : group - chunk * kReps;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const SequenceNumbers& s = p.sequences[static_cast<int64_t>(p.layer) * p.rows + r];
  const TokenNumbers& token = p.tokens[r];
  const uint32_t queries = shared_base(), token_key = queries + Shape::kHeads,
                 token_value = token_key + Shape::kWidth * 4,
                 parts = queries + Shape::kHeads + Shape::kToken, last = parts + Shape::kParts;

  // What the previous kernel does not make is read before it has ended: all keys but the token's.
  const LaneRotation<Shape::kWidth> rotation(p, token);
  const int of_lane = lane % kLanes * 8;  // the lane's numbers of a head
  // Keys 0 ... far, then near ones; the token's own key is left out here.
  const int far = s.far_end - s.far_begin, all = far + s.near_end - s.near_begin;
  const int length = (all + p.splits - 1) / p.splits;
  const int begin = split * length, end = begin + length < all ? begin + length : all;
  constexpr int kStride = kAttentionWarps * kKeys * kKeysAhead;
  uint4 k_bits[kKeysAhead], v_bits[kKeysAhead];
  int distance[kKeysAhead];
  bool seen[kKeysAhead];
  const auto load_keys = [&](int n0) {
#pragma unroll
    for (int a = 0; a < kKeysAhead; ++a) {
      const int n = n0 + a * kKeys + lane / kLanes;
      const bool is_far = n < far;
      const int j = is_far ? s.far_begin + n : s.near_begin + n - far;
      seen[a] = n < end && j != s.written;
      k_bits[a] = v_bits[a] = uint4{};
      distance[a] = 0;
      if (!seen[a]) continue;
      const KeyPlace at = place_of(p.runs, s, token.position, j, is_far, kv_head);
      distance[a] = at.distance;
      if (of_lane >= d) continue;
      k_bits[a] = *reinterpret_cast<const uint4*>(at.key + of_lane);
      v_bits[a] = *reinterpret_cast<const uint4*>(at.value + of_lane);
    }
  };
  const int first_key = begin + warp * kKeys * kKeysAhead;
  load_keys(first_key);
  wait_for_previous();

  const uint16_t* const qkv =
      p.qkv + static_cast<int64_t>(r) * (p.heads + 2 * p.kv_heads) * p.head_dim;
  if (warp < heads) {
    const float length = p.q_length != nullptr ? p.q_length[0] * p.q_length_factor : 1.0f;
    const PlacedHead<Shape::kWidth> q(p, rotation, qkv + (first_head + warp) * d, p.q_gain, length);
#pragma unroll
    for (int n = 0; n < Shape::kWidth / 32; ++n)
      store_shared_float(queries + (warp * Shape::kWidth + lane + 32 * n) * 4, q.at(n));
  }
  if (split == 0 && warp == kAttentionWarps - 1) {
    const uint16_t* const key = qkv + (p.heads + kv_head) * d;
    const uint16_t* const value = key + p.kv_heads * d;
    const PlacedHead<Shape::kWidth> k(p, rotation, key, p.k_gain, 1.0f);
    const KeyPlace at = place_of(p.runs, s, token.position, s.written, false, kv_head);
#pragma unroll
    for (int n = 0; n < Shape::kWidth / 32; ++n) {
      const int i = lane + 32 * n;
      const float x = k.at(n), v = i < d ? number(value[i]) : 0.0f;
      store_shared_float(token_key + i * 4, x);
      store_shared_float(token_value + i * 4, v);
      if (i >= d || chunk > 0) continue;
      const_cast<uint16_t*>(at.key)[i] = bits_of(x);
      const_cast<uint16_t*>(at.value)[i] = value[i];
    }
  }
  sync_block();

  float q[kReps][8];
#pragma unroll
  for (int h = 0; h < kReps; ++h)
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const float2 two =
          load_shared_float2(queries + ((h < heads ? h : 0) * Shape::kWidth + of_lane + e) * 4);
      q[h][e] = two.x, q[h][e + 1] = two.y;
    }
  const float scale = p.rule.tau != nullptr ? 1.0f / p.rule.tau[r] : p.rule.scale;
  LaneSum sums[kReps];
  // One key; lanes that have none add nothing.
  const auto add_key = [&](const float(&k)[8], const float(&v)[8], int apart, bool counts) {
#pragma unroll
    for (int h = 0; h < kReps; ++h) {
      float product = 0.0f;
#pragma unroll
      for (int e = 0; e < 8; ++e) product += q[h][e] * k[e];
      product = warp_sum<kLanes>(product);
      if (counts && h < heads)
        sums[h].add(score_of(p.rule, product, scale, first_head + h, apart), v);
    }
  };

  for (int n0 = first_key; n0 < end; n0 += kStride) {
    if (n0 != first_key) load_keys(n0);
#pragma unroll
    for (int a = 0; a < kKeysAhead; ++a) {
      float key[8], value[8];
      unpack_8(k_bits[a], key), unpack_8(v_bits[a], value);
      add_key(key, value, distance[a], seen[a]);
    }
  }
  if (split == 0 && warp == 0) {
    float key[8], value[8];
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const float2 k = load_shared_float2(token_key + (of_lane + e) * 4),
                   v = load_shared_float2(token_value + (of_lane + e) * 4);
      key[e] = k.x, key[e + 1] = k.y, value[e] = v.x, value[e + 1] = v.y;
    }
    const bool is_seen = s.near_begin <= s.written && s.written < s.near_end;
    add_key(key, value, static_cast<int>(token.position) - (s.written + s.near_shift),
            is_seen && lane < kLanes);
  }

  // Lanes of one warp with the same numbers, then warps, then blocks.
  const auto part_at = [&](int w, int h, int i) {
    return parts + ((w * kDecodeHeads + h) * (Shape::kWidth + 2) + i) * 4;
  };
#pragma unroll
  for (int h = 0; h < kReps; ++h) {
    const float top = warp_max(sums[h].top);
    sums[h].rescale(top);
#pragma unroll
    for (int mask = kLanes; mask < 32; mask *= 2) {
      sums[h].weights += shuffle_xor(sums[h].weights, mask);
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[h].values[e] += shuffle_xor(sums[h].values[e], mask);
    }
    if (lane < kLanes)
#pragma unroll
      for (int e = 0; e < 8; ++e)
        store_shared_float(part_at(warp, h, of_lane + e), sums[h].values[e]);
    if (lane == 0) {
      store_shared_float(part_at(warp, h, Shape::kWidth), top);
      store_shared_float(part_at(warp, h, Shape::kWidth + 1), sums[h].weights);
    }
  }
  sync_block();
  if (warp < heads) {
    const int h = warp, head = first_head + h;
    float top = -1e30f, weights = 0.0f;
    for (int w = 0; w < kAttentionWarps; ++w)
      top = max_of(top, load_shared_number(part_at(w, h, Shape::kWidth)));
    float factor[kAttentionWarps];
    for (int w = 0; w < kAttentionWarps; ++w) {
      factor[w] = exp_fast(load_shared_number(part_at(w, h, Shape::kWidth)) - top);
      weights += factor[w] * load_shared_number(part_at(w, h, Shape::kWidth + 1));
    }
    float* const part =
        p.parts + ((static_cast<int64_t>(r) * p.heads + head) * p.splits + split) * (d + 2);
    const bool alone = p.splits == 1;
    if (alone && p.rule.sink_logit != nullptr) {
      const float sink = p.rule.sink_logit[head], higher = max_of(top, sink),
                  by = exp_fast(top - higher);
      weights = weights * by + exp_fast(sink - higher);
      for (int w = 0; w < kAttentionWarps; ++w) factor[w] *= by;
    }
    for (int i = lane; i < d; i += 32) {
      float x = 0.0f;
      for (int w = 0; w < kAttentionWarps; ++w)
        x += factor[w] * load_shared_number(part_at(w, h, i));
      if (alone)
        p.out[(static_cast<int64_t>(r) * p.heads + head) * d + i] =
            bits_of(weights > 0.0f ? x / weights : 0.0f);
      else
        part[i] = x;
    }
    if (!alone && lane == 0) part[d] = top, part[d + 1] = weights;
  }
  if (p.splits == 1) return;

  fence_device();
  sync_block();
  int* const arrived =
      p.arrived + (static_cast<int64_t>(r) * p.kv_heads + kv_head) * chunks + chunk;
  if (threadIdx.x == 0) {
    const bool is_last = add_and_get_old(arrived, 1) == p.splits - 1;
    store_shared(last, is_last ? 1u : 0u);
    if (is_last) *arrived = 0;  // for the next launch
  }
  sync_block();
  if (load_shared(last) == 0) return;
  fence_device();
  if (warp >= heads) return;
  const int head = first_head + warp;
  const float* const from =
      p.parts + (static_cast<int64_t>(r) * p.heads + head) * p.splits * (d + 2);
  const auto part = [&](int n) { return from + static_cast<int64_t>(n) * (d + 2); };
  // Each lane has the factors of four parts at most; they travel by shuffles.
  float tops[kMostSplits / 32], factors[kMostSplits / 32], weights = 0.0f, top = -1e30f;
#pragma unroll
  for (int n = 0; n < kMostSplits / 32; ++n) {
    const int part_of = lane + 32 * n;
    const bool has = part_of < p.splits;
    tops[n] = has ? load_other(part(part_of) + d) : -1e30f;
    factors[n] = has ? load_other(part(part_of) + d + 1) : 0.0f;
    top = max_of(top, tops[n]);
  }
  top = warp_max(top);
  if (p.rule.sink_logit != nullptr) top = max_of(top, p.rule.sink_logit[head]);
#pragma unroll
  for (int n = 0; n < kMostSplits / 32; ++n) {
    const float scaled = exp_fast(tops[n] - top);
    weights += scaled * factors[n];
    factors[n] = scaled;
  }
  weights = warp_sum(weights);
  if (p.rule.sink_logit != nullptr) weights += exp_fast(p.rule.sink_logit[head] - top);
  float sums_of[Shape::kWidth / 32] = {};
#pragma unroll
  for (int block = 0; block < kMostSplits / 32; ++block) {
    const int count = p.splits - 32 * block < 32 ? p.splits - 32 * block : 32;
#pragma unroll 8
    for (int n = 0; n < count; ++n) {
      const float factor = shuffle_float(factors[block], n);
#pragma unroll
      for (int e = 0; e < Shape::kWidth / 32; ++e)
        if (lane + 32 * e < d)
          sums_of[e] += factor * load_other(part(32 * block + n) + lane + 32 * e);
    }
  }
#pragma unroll
  for (int e = 0; e < Shape::kWidth / 32; ++e)
    if (const int i = lane + 32 * e; i < d)
      p.out[(static_cast<int64_t>(r) * p.heads + head) * d + i] =
          bits_of(weights > 0.0f ? sums_of[e] / weights : 0.0f);
}

}  // namespace fovea::kernels::cuda
