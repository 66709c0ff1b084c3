// Element-wise steps on one tile of scores: mask, soft-cap, bias, dropout. Shared by forward (a row
// is a query, lanes are keys) and backward (a row is a key, lanes are queries).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/attention_tiles.h"

namespace fovea::kernels {
namespace {

/// Places of kLanes tokens, or of one token in all lanes.
struct LanePlaces {
  Int position, document, pattern_id, open;
  Int members_low{}, members_high{};
};

FOVEA_INLINE LanePlaces places_at(const PlaceColumns& columns, int64_t n) {
  LanePlaces at{load(columns.position + n), load(columns.document + n),
                load(columns.pattern_id + n), load(columns.open + n)};
  if (columns.members_low != nullptr) at.members_low = load(columns.members_low + n);
  if (columns.members_high != nullptr) at.members_high = load(columns.members_high + n);
  return at;
}

FOVEA_INLINE LanePlaces place_of(const PlaceColumns& columns, int64_t n) {
  LanePlaces at{broadcast(columns.position[n]), broadcast(columns.document[n]),
                broadcast(columns.pattern_id[n]), broadcast(columns.open[n])};
  if (columns.members_low != nullptr) at.members_low = broadcast(columns.members_low[n]);
  if (columns.members_high != nullptr) at.members_high = broadcast(columns.members_high[n]);
  return at;
}

/// Pairs that memberships allow (VisitRule::members); `lag` is i - j.
FOVEA_INLINE Int members_allow(const VisitRule& rule, const LanePlaces& query,
                               const LanePlaces& key, Int lag) {
  const Int common =
      (query.members_low & key.members_low) | (query.members_high & key.members_high);
  if (rule.members == MemberRule::apart) return common == 0;
  const Int kept = (common != 0) | (lag < rule.near);
  return rule.opens ? kept | ((key.open & 4) != 0) : kept;  // TokenColumns::kOpenToAll
}

/// Whether memberships alone let a query see a key.
FOVEA_INLINE Lanes meet_lanes(bool wide, Int query_low, Int query_high, const LanePlaces& key) {
  Lanes common = lanes_in_common(query_low, key.members_low);
  if (wide) common |= lanes_in_common(query_high, key.members_high);
  return common;
}

/// allowed(query, key) lane by lane: all bits set or none.
FOVEA_INLINE Int seen_lanes(const VisitRule& rule, const LanePlaces& query, const LanePlaces& key) {
  Int seen = query.document == key.document;
  const Int lag = query.position - key.position;
  const Int causal = lag >= 0;
  if (rule.causal) seen &= causal;
  if (rule.members != MemberRule::ignored) seen &= members_allow(rule, query, key, lag);
  if (!rule.limited) return seen;
  const Int distance = rule.causal ? lag : (causal ? lag : -lag);
  Int reached = distance < rule.reach;
  if (rule.patterned) reached |= query.pattern_id == key.pattern_id;
  if (rule.opens) {
    reached |= ((key.open & 1) != 0) & causal;  // TokenColumns::kOpenBefore
    reached |= (key.open & 2) != 0;             // TokenColumns::kOpenAlways
  }
  return seen & reached;
}

/// A tile by its ends, where positions ascend: it holds no seen pair, only seen ones, pairs that
/// positions and memberships decide, or any.
enum class Cover { none, all, band, unknown };

/// Whether the ends of a tile without open keys tell of it, and seen_lanes() is no more than
/// seen_in_band() there.
FOVEA_INLINE bool has_bands(const VisitRule& rule) {
  if (!rule.causal || rule.patterned) return false;
  return rule.members == MemberRule::ignored || (!rule.limited && !rule.opens);
}

/// The band of one document, where the rule has bands: pairs at distances i - j of `least` to
/// `most`. Keys are open from the first one on, if any are: `open` is the first key's column,
/// `last_open` the last one's.
FOVEA_INLINE Cover cover_of(const VisitRule& rule, int64_t least, int64_t most, int32_t open,
                            int32_t last_open) {
  if (rule.opens && open != 0) {  // sinks: seen whatever the window is
    if (most < 0) return Cover::none;
    return last_open != 0 && least >= 0 ? Cover::all : Cover::unknown;
  }
  if (most < 0 || (rule.limited && least >= rule.reach)) return Cover::none;
  if (least < 0 || rule.members == MemberRule::apart) return Cover::band;
  const bool near = rule.members == MemberRule::meet_or_near ? most < rule.near : true;
  return near && (!rule.limited || most < rule.reach) ? Cover::all : Cover::band;
}

constexpr int32_t kAnyDistance = 0x7FFFFFFF;

/// seen_lanes() of tokens in one document at distances `lag`; `common` is meet_lanes().
FOVEA_INLINE Lanes seen_in_band(const VisitRule& rule, Int lag, Lanes common) {
  const Lanes reached = lanes_below(lag, rule.limited ? rule.reach : kAnyDistance);
  if (rule.members == MemberRule::ignored) return reached;
  if (rule.members == MemberRule::apart) return reached & ~common;
  return lanes_below(lag, rule.near) | (reached & common);
}

/// Entries of the bias table at distances i - j.
FOVEA_INLINE Int bias_index(const HeadRule& rule, Int distance) {
  const Int last = broadcast(rule.bias_count - 1), at = distance - rule.bias_first;
  return at < 0 ? Int{} : (at > last ? last : at);
}

FOVEA_INLINE Float gather(const float* table, Int index) {
  alignas(64) int32_t at[kLanes];
  alignas(64) float out[kLanes];
  *reinterpret_cast<Int*>(at) = index;
  for (int i = 0; i < kLanes; ++i) out[i] = table[at[i]];
  return load(out);
}

/// The scaled product under the soft-cap (stage 2; spec 7.4); `slope` becomes the derivative. With
/// r = 1 / (1 + e^(2 s / c)), c tanh(s / c) is c - 2 c r; `degree` of exp2_lanes().
template <int degree>
FOVEA_INLINE Float capped(const HeadRule& rule, Float s, Float& slope) {
  slope = broadcast(1.0f);
  if (rule.soft_cap > 0.0f) {
    const Float r = 1.0f / (exp2_lanes<degree>(s * rule.cap_exponent) + 1.0f);
    slope = (r - r * r) * 4.0f;
    s = rule.soft_cap - r * (2.0f * rule.soft_cap);
  }
  return s;
}

/// Biases by distance on a logit (stage 5; spec 6.4, 6.3).
FOVEA_INLINE Float biased(const HeadRule& rule, Float s, Int distance) {
  if (rule.alibi != 0.0f) s = s - as_floats(distance) * rule.alibi;
  if (rule.distance_bias != nullptr) s = s + gather(rule.distance_bias, bias_index(rule, distance));
  return s;
}

/// Adds the gradient of logits at distances i - j to that of the bias table: far pairs meet one
/// entry only.
FOVEA_INLINE void add_bias_gradient(const HeadRule& rule, Int distance, Float ds, double* sums) {
  const Int at = bias_index(rule, distance);
  if (!any(at != at[0])) {
    sums[at[0]] += static_cast<double>(sum(ds));
    return;
  }
  for (int i = 0; i < kLanes; ++i) sums[at[i]] += static_cast<double>(ds[i]);
}

/// A word of Philox 4x32-10 as fovea/base/rng.h defines it, here with internal linkage and in a
/// form that compilers turn into vectors.
struct PhiloxWords {
  uint32_t word[4];
};
FOVEA_INLINE PhiloxWords philox_words(uint64_t key, uint64_t low, uint64_t high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(low), c1 = static_cast<uint32_t>(low >> 32),
           c2 = static_cast<uint32_t>(high), c3 = static_cast<uint32_t>(high >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

FOVEA_INLINE float keep_factor(const HeadRule& rule, uint32_t bits) {
  const float uniform = static_cast<float>(static_cast<int32_t>(bits >> 8)) * 0x1p-24f;
  return uniform >= rule.dropout ? 1.0f / (1.0f - rule.dropout) : 0.0f;
}

/// Dropout factors of query `index` for the keys of one panel.
FOVEA_INLINE void keep_keys(const HeadRule& rule, int64_t index, int64_t key, float* factors) {
#pragma omp simd
  for (int64_t block = 0; block < kPanel / 4; ++block) {
    const PhiloxWords r =
        philox_words(rule.dropout_seed,
                     (static_cast<uint64_t>(index) << 32) | static_cast<uint64_t>(key / 4 + block),
                     rule.dropout_stream);
    for (int n = 0; n < 4; ++n) factors[4 * block + n] = keep_factor(rule, r.word[n]);
  }
}

/// Dropout factors of four neighbouring keys for the queries of one panel: [4][kPanel].
FOVEA_INLINE void keep_queries(const HeadRule& rule, int64_t index, int64_t key, float* factors) {
#pragma omp simd
  for (int64_t lane = 0; lane < kPanel; ++lane) {
    const PhiloxWords r =
        philox_words(rule.dropout_seed,
                     (static_cast<uint64_t>(index + lane) << 32) | static_cast<uint64_t>(key / 4),
                     rule.dropout_stream);
    for (int n = 0; n < 4; ++n) factors[n * kPanel + lane] = keep_factor(rule, r.word[n]);
  }
}

}  // namespace
}  // namespace fovea::kernels
