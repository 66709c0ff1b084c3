// Attention of one token of each sequence over its cache (spec 4, 10; the rows of SequenceNumbers),
// with the token's queries and keys normed and rotated (6, 7.3) and its key and value written.
//
// A block is up to four query heads of a key head, one sequence and one part of the keys. A warp
// reads kKeys keys at a time, kLanes lanes each, 16 bytes a lane, and keeps softmax and sum of
// values of its lanes' keys. The block that ends last adds the parts of all blocks.
//
// With groups of Focus (11.5) every block finds the token's groups from its features. A warp then
// lists which of kListed keys the token reads, from their memberships, and reads those.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/decode/launches.h"
#include "fovea/kernels/cuda/decode/placed_head.cuh"

namespace fovea::kernels::cuda {

/// A warp norms and rotates each head of the block.
constexpr int kAttentionWarps = kAttentionHeads, kAttentionThreads = 32 * kAttentionWarps;
/// Keys of a lane whose loads are in flight together.
constexpr int kKeysAhead = 4;
/// Keys that a warp lists together.
constexpr int kListed = 128;

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
  static constexpr int kWidth = 8 * kLanes;                    ///< head size, at most
  static constexpr int kHeads = kAttentionHeads * kWidth * 4;  ///< queries in float32
  static constexpr int kToken = 2 * kWidth * 4;                ///< the token's key and value
  static constexpr int kParts = kAttentionWarps * kAttentionHeads * (kWidth + 2) * 4;
  static constexpr int kLists = kAttentionWarps * kListed * 4;
  static constexpr int kShared = kHeads + kToken + kParts + 64 + kLists;
};

/// The work of one block; every thread has one. kReps: heads that are computed, 1 or
/// kAttentionHeads.
template <int kLanes, int kReps, bool kGrouped>
class AttentionBlock {
  using Shape = DecodeAttentionShape<kLanes>;
  static constexpr int kWidth = Shape::kWidth, kKeys = 32 / kLanes;
  static constexpr int kStride = kAttentionWarps * kKeys * kKeysAhead;
  static constexpr int kNumbers = kWidth / 32;  ///< of a head, a lane

 public:
  FOVEA_DEVICE explicit AttentionBlock(const DecodeAttentionParameters& p)
      : p_(p),
        d_(p.head_dim),
        chunks_((p.heads / p.kv_heads + kReps - 1) / kReps),
        kv_head_(blockIdx.y / chunks_),
        chunk_(blockIdx.y % chunks_),
        row_(blockIdx.z),
        first_head_(kv_head_ * (p.heads / p.kv_heads) + chunk_ * kReps),
        s_(p.sequences[static_cast<int64_t>(p.layer) * p.rows + row_]),
        token_(p.tokens[row_]) {
    const int left = p.heads / p.kv_heads - chunk_ * kReps;
    heads_ = left < kReps ? left : kReps;
    far_ = s_.far_end - s_.far_begin;
    const int all = far_ + s_.near_end - s_.near_begin;
    const int length = (all + p.splits - 1) / p.splits, begin = blockIdx.x * length;
    end_ = begin + length < all ? begin + length : all;
    next_ = begin + warp_ * (kGrouped ? kListed : kKeys * kKeysAhead);
  }

  FOVEA_DEVICE void run() {
    // What the previous kernel does not make is read before it has ended: all keys but the token's.
    const LaneRotation<kWidth> rotation(p_, token_);
    if constexpr (kGrouped)
      load_members();
    else
      load_keys();
    wait_for_previous();
    place_token(rotation);
    sync_block();
    read_queries();
    if constexpr (kGrouped)
      read_listed();
    else
      for (; next_ < end_; next_ += kStride, load_keys()) add_keys();
    if (blockIdx.x == 0 && warp_ == 0) add_token();
    join_lanes();
    sync_block();
    if (warp_ < heads_) join_warps();
    if (p_.splits > 1 && is_last_block() && warp_ < heads_) join_blocks();
  }

 private:
  // Keys 0 ... far_, then near ones; the token's own key is left out.
  FOVEA_DEVICE void load_keys() {
#pragma unroll
    for (int a = 0; a < kKeysAhead; ++a) {
      const int n = next_ + a * kKeys + lane_ / kLanes;
      load_key(a, n, n < end_);
    }
  }
  FOVEA_DEVICE int row_of(int n) const {
    return n < far_ ? s_.far_begin + n : s_.near_begin + n - far_;
  }
  FOVEA_DEVICE void load_key(int a, int n, bool exists) {
    const int j = row_of(n);
    seen_[a] = exists && j != s_.written;
    k_[a] = v_[a] = uint4{};
    distance_[a] = 0;
    if (!seen_[a]) return;
    const KeyPlace at = place_of(p_.runs, s_, token_.position, j, n < far_, kv_head_);
    distance_[a] = at.distance;
    if (of_lane_ >= d_) return;
    k_[a] = *reinterpret_cast<const uint4*>(at.key + of_lane_);
    v_[a] = *reinterpret_cast<const uint4*>(at.value + of_lane_);
  }

  // Memberships of kListed keys from next_ on.
  FOVEA_DEVICE void load_members() {
#pragma unroll
    for (int a = 0; a < kListed / 32; ++a) {
      const int n = next_ + 32 * a + lane_, j = row_of(n);
      members_[a] = n < end_ && j != s_.written ? s_.members[j] : 0;
    }
  }
  // The groups of the token (TokenGroups), and its row of the memberships.
  FOVEA_DEVICE uint64_t find_groups() const {
    const TokenGroups& g = p_.groups;
    const int features = static_cast<int>(g.features), groups = static_cast<int>(g.groups);
    const float* const z = p_.features + static_cast<int64_t>(row_) * features;
    for (int k = warp_; k < groups; k += kAttentionWarps) {
      float score = 0.0f;
#pragma unroll 4
      for (int f = lane_; f < features; f += 32) score += z[f] * g.centroids[k * features + f];
      score = warp_sum(score) * *g.scale / g.temperature;
      if (lane_ == 0)
        store_shared_float(parts_ + 4 * k,
                           score + (g.potentials != nullptr ? g.potentials[k] : 0.0f));
    }
    sync_block();
    uint64_t members = 0;
    for (int n = 0; n < static_cast<int>(g.top_k); ++n)
      members |= uint64_t{1} << best_group(members);
    sync_block();  // parts_ will have sums
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) s_.members[s_.written] = members;
    return members;
  }
  // The largest score of a group that is not taken, the first of several; a lane has two groups.
  FOVEA_DEVICE int best_group(uint64_t taken) const {
    const int groups = static_cast<int>(p_.groups.groups);
    float top = -infinity(), best = 64.0f;
    const auto take = [&](float score, float k) {
      if (score > top || (score == top && k < best)) top = score, best = k;
    };
    for (int k = lane_; k < groups; k += 32)
      if ((taken >> k & 1) == 0) take(load_shared_number(parts_ + 4 * k), static_cast<float>(k));
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      const float score = shuffle_xor(top, mask), k = shuffle_xor(best, mask);
      take(score, k);
    }
    return static_cast<int>(best);
  }

  // Of kListed keys from next_ on, those that the token reads; how many.
  FOVEA_DEVICE int list_keys(uint64_t own) const {
    const uint32_t list = lists_ + warp_ * kListed * 4;
    const int stop = next_ + kListed < end_ ? next_ + kListed : end_;
    int count = 0;
    sync_warp();  // the last list has been read
#pragma unroll
    for (int a = 0; a < kListed / 32; ++a) {
      const int n = next_ + 32 * a + lane_, j = row_of(n);
      bool reads = n < stop && j != s_.written;
      if (reads) {
        const int place = j + (n < far_ ? s_.far_shift : s_.near_shift);
        reads = token_.position - place < p_.groups.window || place < p_.groups.sinks ||
                (members_[a] & own) != 0;
      }
      const uint32_t readers = ballot(reads);
      if (reads)
        store_shared(list + (count + popcount(readers & ((1u << lane_) - 1))) * 4,
                     static_cast<uint32_t>(n));
      count += popcount(readers);
    }
    sync_warp();
    return count;
  }
  FOVEA_DEVICE void read_listed() {
    const uint64_t own = find_groups();
    while (next_ < end_) {
      const int count = list_keys(own);
      next_ += kAttentionWarps * kListed;
      load_members();
      for (int first = 0; first < count; first += kKeys * kKeysAhead) {
#pragma unroll
        for (int a = 0; a < kKeysAhead; ++a) {
          const int at = first + a * kKeys + lane_ / kLanes;
          const bool exists = at < count;
          const uint32_t place = lists_ + (warp_ * kListed + (exists ? at : 0)) * 4;
          load_key(a, static_cast<int>(load_shared(place)), exists);
        }
        add_keys();
      }
    }
  }

  // Queries, a warp each, to shared memory; the token's key and value there and into the cache.
  FOVEA_DEVICE void place_token(const LaneRotation<kWidth>& rotation) const {
    const uint16_t* const qkv =
        p_.qkv + static_cast<int64_t>(row_) * (p_.heads + 2 * p_.kv_heads) * d_;
    if (warp_ < heads_) {
      const float length = p_.q_length != nullptr ? p_.q_length[0] * p_.q_length_factor : 1.0f;
      const PlacedHead<kWidth> q(p_, rotation, {qkv, p_.q_gain, p_.heads, length},
                                 first_head_ + warp_);
#pragma unroll
      for (int n = 0; n < kNumbers; ++n)
        store_shared_float(queries_ + (warp_ * kWidth + lane_ + 32 * n) * 4, q.at(n));
    }
    if (blockIdx.x > 0 || warp_ != kAttentionWarps - 1) return;
    const uint16_t* const keys = qkv + p_.heads * d_;
    const uint16_t* const value = keys + (p_.kv_heads + kv_head_) * d_;
    const PlacedHead<kWidth> k(p_, rotation, {keys, p_.k_gain, p_.kv_heads, 1.0f}, kv_head_);
    const KeyPlace at = place_of(p_.runs, s_, token_.position, s_.written, false, kv_head_);
#pragma unroll
    for (int n = 0; n < kNumbers; ++n) {
      const int i = lane_ + 32 * n;
      const float x = k.at(n);
      store_shared_float(token_key_ + i * 4, x);
      store_shared_float(token_value_ + i * 4, i < d_ ? number(value[i]) : 0.0f);
      if (i >= d_ || chunk_ > 0) continue;
      const_cast<uint16_t*>(at.key)[i] = bits_of(x);
      const_cast<uint16_t*>(at.value)[i] = value[i];
    }
  }

  FOVEA_DEVICE void read_eight(uint32_t at, float (&x)[8]) const {
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const float2 two = load_shared_float2(at + (of_lane_ + e) * 4);
      x[e] = two.x, x[e + 1] = two.y;
    }
  }
  FOVEA_DEVICE void read_queries() {
#pragma unroll
    for (int h = 0; h < kReps; ++h) read_eight(queries_ + (h < heads_ ? h : 0) * kWidth * 4, q_[h]);
    scale_ = p_.rule.tau != nullptr ? 1.0f / p_.rule.tau[row_] : p_.rule.scale;
  }

  // One key a group of lanes; groups that have none add nothing.
  FOVEA_DEVICE void add_key(const float (&k)[8], const float (&v)[8], int distance, bool seen) {
#pragma unroll
    for (int h = 0; h < kReps; ++h) {
      float product = 0.0f;
#pragma unroll
      for (int e = 0; e < 8; ++e) product += q_[h][e] * k[e];
      product = warp_sum<kLanes>(product);
      if (seen && h < heads_)
        sums_[h].add(score_of(p_.rule, product, scale_, first_head_ + h, distance), v);
    }
  }
  FOVEA_DEVICE void add_keys() {
#pragma unroll
    for (int a = 0; a < kKeysAhead; ++a) {
      float key[8], value[8];
      unpack_8(k_[a], key), unpack_8(v_[a], value);
      add_key(key, value, distance_[a], seen_[a]);
    }
  }
  FOVEA_DEVICE void add_token() {
    float key[8], value[8];
    read_eight(token_key_, key), read_eight(token_value_, value);
    const bool seen = s_.near_begin <= s_.written && s_.written < s_.near_end;
    add_key(key, value, static_cast<int>(token_.position) - (s_.written + s_.near_shift),
            seen && lane_ < kLanes);
  }

  FOVEA_DEVICE uint32_t part_at(int warp, int h, int i) const {
    return parts_ + ((warp * kAttentionHeads + h) * (kWidth + 2) + i) * 4;
  }
  // Lanes of a warp that have the same numbers of different keys.
  FOVEA_DEVICE void join_lanes() {
#pragma unroll
    for (int h = 0; h < kReps; ++h) {
      LaneSum& sum = sums_[h];
      const float top = warp_max(sum.top);
      sum.rescale(top);
#pragma unroll
      for (int mask = kLanes; mask < 32; mask *= 2) {
        sum.weights += shuffle_xor(sum.weights, mask);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum.values[e] += shuffle_xor(sum.values[e], mask);
      }
      if (lane_ < kLanes)
#pragma unroll
        for (int e = 0; e < 8; ++e)
          store_shared_float(part_at(warp_, h, of_lane_ + e), sum.values[e]);
      if (lane_ != 0) continue;
      store_shared_float(part_at(warp_, h, kWidth), top);
      store_shared_float(part_at(warp_, h, kWidth + 1), sum.weights);
    }
  }

  // Head `warp_`: the warps' sums, to the output or to this block's part.
  FOVEA_DEVICE void join_warps() const {
    const int head = first_head_ + warp_;
    float top = -1e30f, weights = 0.0f, factor[kAttentionWarps];
    for (int w = 0; w < kAttentionWarps; ++w)
      top = max_of(top, load_shared_number(part_at(w, warp_, kWidth)));
    const bool alone = p_.splits == 1;
    if (alone && p_.rule.sink_logit != nullptr) {
      top = max_of(top, p_.rule.sink_logit[head]);
      weights = exp_fast(p_.rule.sink_logit[head] - top);
    }
    for (int w = 0; w < kAttentionWarps; ++w) {
      factor[w] = exp_fast(load_shared_number(part_at(w, warp_, kWidth)) - top);
      weights += factor[w] * load_shared_number(part_at(w, warp_, kWidth + 1));
    }
    float* const part = part_of(head, blockIdx.x);
    for (int i = lane_; i < d_; i += 32) {
      float x = 0.0f;
      for (int w = 0; w < kAttentionWarps; ++w)
        x += factor[w] * load_shared_number(part_at(w, warp_, i));
      if (alone)
        write(head, i, x, weights);
      else
        part[i] = x;
    }
    if (!alone && lane_ == 0) part[d_] = top, part[d_ + 1] = weights;
  }
  FOVEA_DEVICE void write(int head, int i, float sum, float weights) const {
    p_.out[(static_cast<int64_t>(row_) * p_.heads + head) * d_ + i] =
        bits_of(weights > 0.0f ? sum / weights : 0.0f);
  }
  FOVEA_DEVICE float* part_of(int head, int split) const {
    return p_.parts +
           ((static_cast<int64_t>(row_) * p_.heads + head) * p_.splits + split) * (d_ + 2);
  }

  // Whether all other blocks of these heads have written their parts.
  FOVEA_DEVICE bool is_last_block() const {
    fence_device();
    sync_block();
    int* const arrived =
        p_.arrived + (static_cast<int64_t>(row_) * p_.kv_heads + kv_head_) * chunks_ + chunk_;
    if (threadIdx.x == 0) {
      const bool last = add_and_get_old(arrived, 1) == p_.splits - 1;
      store_shared(last_, last ? 1u : 0u);
      if (last) *arrived = 0;  // for the next launch
    }
    sync_block();
    const bool last = load_shared(last_) != 0;
    if (last) fence_device();
    return last;
  }

  // Head `warp_`. A lane has the factors of parts lane, lane + 32, ...; they travel by shuffles.
  FOVEA_DEVICE void join_blocks() const {
    constexpr int kRounds = kMostSplits / 32;
    const int head = first_head_ + warp_;
    float factors[kRounds], of_part[kRounds], weights = 0.0f, top = -1e30f;
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const bool has = lane_ + 32 * n < p_.splits;
      const float* const part = part_of(head, lane_ + 32 * n) + d_;
      factors[n] = has ? load_other(part) : -1e30f;  // the part's largest score
      of_part[n] = has ? load_other(part + 1) : 0.0f;
      top = max_of(top, factors[n]);
    }
    top = warp_max(top);
    const float* const sink = p_.rule.sink_logit;
    if (sink != nullptr) top = max_of(top, sink[head]);
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      factors[n] = exp_fast(factors[n] - top);
      weights += factors[n] * of_part[n];
    }
    weights = warp_sum(weights);
    if (sink != nullptr) weights += exp_fast(sink[head] - top);
    float sums[kNumbers] = {};
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const int left = p_.splits - 32 * n, count = left < 32 ? left : 32;
#pragma unroll 8
      for (int l = 0; l < count; ++l) {
        const float factor = shuffle_float(factors[n], l);
#pragma unroll
        for (int e = 0; e < kNumbers; ++e)
          if (lane_ + 32 * e < d_)
            sums[e] += factor * load_other(part_of(head, 32 * n + l) + lane_ + 32 * e);
      }
    }
#pragma unroll
    for (int e = 0; e < kNumbers; ++e)
      if (lane_ + 32 * e < d_) write(head, lane_ + 32 * e, sums[e], weights);
  }

  const DecodeAttentionParameters& p_;
  const int d_, chunks_, kv_head_, chunk_, row_, first_head_;
  const SequenceNumbers& s_;
  const TokenNumbers& token_;
  const int warp_ = threadIdx.x / 32, lane_ = threadIdx.x % 32;
  const int of_lane_ = lane_ % kLanes * 8;  // the lane's numbers of a head
  const uint32_t queries_ = shared_base(), token_key_ = queries_ + Shape::kHeads,
                 token_value_ = token_key_ + kWidth * 4, parts_ = token_key_ + Shape::kToken,
                 last_ = parts_ + Shape::kParts, lists_ = last_ + 64;
  int heads_, far_, next_, end_;  // heads of this block; keys: far ones, of the warp's next load
  uint4 k_[kKeysAhead], v_[kKeysAhead];
  int distance_[kKeysAhead];
  uint64_t members_[kGrouped ? kListed / 32 : 1];
  bool seen_[kKeysAhead];
  float q_[kReps][8], scale_;
  LaneSum sums_[kReps];
};

template <int kLanes, int kReps, bool kGrouped>
FOVEA_KERNEL(kAttentionThreads, 1)
decode_attention_kernel(const __grid_constant__ DecodeAttentionParameters p) {
  start_dependents();
  AttentionBlock<kLanes, kReps, kGrouped>(p).run();
}

}  // namespace fovea::kernels::cuda
