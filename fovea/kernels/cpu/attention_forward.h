// Forward flash attention of one block of query rows.
//
//   strip of keys ->   S = Q K^T (kRows x kStrip sums in registers) -> logit, mask -> P = 2^(x - m)
//   every 4 strips ->  O += P V
//
// No pass for the maximum and no rescaling of O: strips are walked from the nearest keys backwards,
// a row's reference m is the largest logit of the first strip in which the row sees a key, and
// float32's exponent absorbs what grows later (biases by distance grow towards the near keys). A
// row whose sum leaves the safe range gets its exact maximum, and the block runs again; the other
// rows then repeat the same bits. So a row never depends on keys that it does not see, nor on its
// neighbours.
//
// The gate of Focus (`gated`) multiplies P after the reference is taken, which bounds the gated
// logits too, or the logit; tiles of local pairs know nothing of it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/attention_gate.h"

namespace fovea::kernels {
namespace {

constexpr int kDepth = 4;  // strips between two updates of O: amortises loading and storing O
constexpr int kGroups = static_cast<int>(kQueryBlock) / kRows;
constexpr int64_t kNearWords = 1 << 17;  // half of a second-level cache of 1 MiB
constexpr float kSafeSum = 0x1p64f;      // beyond it a sum or O could overflow

template <class P>
constexpr int64_t kWeightPitch =
    (kDepth * kStrip + kLanes) / P::kElements;  // an odd number of vectors: no cache set twice

inline int64_t forward_floats(const PackedWidth& key, const PackedWidth& value) {
  return kQueryBlock * (key.pitch + kWeightPitch<Single> + value.columns + 4 * kLanes);
}

template <class T, class P, bool gated>
class ForwardRows {
 public:
  ForwardRows(const ForwardBlock<T>& block, float* scratch)
      : b_(block),
        groups_(static_cast<int>((block.rows + kRows - 1) / kRows)),
        banded_(block.ordered && has_bands(block.rule)) {
    q_ = scratch;
    weights_ = q_ + kQueryBlock * b_.key_width.pitch;
    out_ = weights_ + kQueryBlock * kWeightPitch<Single>;
    sums_ = out_ + kQueryBlock * b_.value_width.columns;
    spread_ = sums_ + kQueryBlock * kLanes;
    top_ = spread_ + kQueryBlock * kLanes;
    first_ = top_ + kQueryBlock * kLanes;
  }

  void run() {
    load_queries();
    pass();
    add_totals();
    if (find_unsafe_rows()) {
      compared_ = false;
      for (int64_t n = 0; n < b_.strip_count; ++n) raise_references(b_.strips[n]);
      pass();
      add_totals();
    }
    b_.left[0] != nullptr ? leave_states() : write();
  }

 private:
  enum class Tile { plain, masked, general };

  void load_queries() {
    const int64_t pitch = b_.key_width.pitch;
    for (int64_t r = 0; r < groups_ * kRows; ++r) {
      const bool real = r < b_.rows;
      const int64_t width = real ? b_.key_width.elements : 0;
      copy_row<T, P>(real ? b_.q[r] : nullptr, width, pitch, q_ + r * pitch);
      scale_[r] = real ? b_.scale[r] : 1.0f;
      factor_[r] = b_.plain ? scale_[r] * kLog2E : kLog2E;
      reference_[r] = 0.0f;
      fresh_[r] = real;
      unsafe_[r] = false;
    }
    for (int g = 0; g < groups_; ++g) {
      const int64_t left = b_.rows - g * kRows;
      open_[g] = left < kRows ? static_cast<int>(left) : kRows;
    }
    if constexpr (gated) load_gates();
  }

  void load_gates() {
    const int64_t pitch = b_.gate.pitch;
    weighs_ = b_.gate.form != PairGate::Form::sigmoid_logit;
    for (int64_t r = 0; r < groups_ * kRows; ++r) {
      for (int64_t c = 0; c < pitch; ++c)
        gates_[r * pitch + c] = r < b_.rows ? b_.query_gate[r][c] : 0.0f;
      if (r % kRows == 0) extent_[r / kRows] = {};
      if (r < b_.rows) extent_[r / kRows].take(b_.position[r]);
    }
  }

  // All strips with the present references, the nearest keys first.
  void pass() {
    const int64_t rows = groups_ * kRows;
    for (int64_t n = 0; n < rows * kLanes; ++n) sums_[n] = 0.0f;
    for (int64_t n = 0; n < rows * b_.value_width.columns; ++n) out_[n] = 0.0f;
    depth_ = 0;
    const bool stats = b_.stats[0] != nullptr;
    for (int64_t n = 0; stats && n < rows * kLanes; ++n) {
      spread_[n] = first_[n] = 0.0f;
      top_[n] = -kInfinity;
    }
    for (int64_t r = 0; b_.states != nullptr && r < b_.rows; ++r) take_states(r, stats);
    stats ? visit_strips<true>() : visit_strips<false>();
  }

  // Begins a row with what passes over other keys left: their sums under one reference.
  void take_states(int64_t r, bool stats) {
    const int64_t columns = b_.value_width.columns, size = row_state(b_.value_width);
    float top = -kInfinity;
    for (int64_t n = 0; n < b_.taken_count[r]; ++n) {
      const float* state = b_.states + b_.taken[r][n] * size + columns;
      if (state[1] > 0.0f && state[0] > top) top = state[0];
    }
    if (top == -kInfinity) return;
    if (fresh_[r]) {
      reference_[r] = top;
      fresh_[r] = false;
      --open_[r / kRows];
    } else if (unsafe_[r] && top > reference_[r]) {
      reference_[r] = top;
    }
    for (int64_t n = 0; n < b_.taken_count[r]; ++n) {
      const float* state = b_.states + b_.taken[r][n] * size;
      const float* tail = state + columns;
      if (!(tail[1] > 0.0f)) continue;
      const float shift = tail[0] - reference_[r];
      const float factor = shift == 0.0f ? 1.0f : __builtin_exp2f(shift);
      float* out = out_ + r * columns;
      for (int64_t c = 0; c < columns; ++c) out[c] += factor * state[c];
      sums_[r * kLanes] += factor * tail[1];
      if (!stats) continue;
      spread_[r * kLanes] += factor * (tail[2] + tail[1] * shift);
      first_[r * kLanes] += factor * tail[4];
      const float largest_x = tail[3] + shift;
      if (largest_x > top_[r * kLanes]) top_[r * kLanes] = largest_x;
    }
  }

  void leave_states() const {
    const int64_t columns = b_.value_width.columns;
    for (int64_t r = 0; r < b_.rows; ++r) {
      float* to = b_.left[r];
      for (int64_t c = 0; c < columns; ++c) to[c] = out_[r * columns + c];
      to[columns] = reference_[r];
      to[columns + 1] = total_[r];
      if (b_.stats[r] == nullptr) continue;
      to[columns + 2] = sum(load(spread_ + r * kLanes));
      to[columns + 3] = largest(load(top_ + r * kLanes));
      to[columns + 4] = sum(load(first_ + r * kLanes));
    }
  }

  template <bool stats>
  void visit_strips() {
    for (int64_t n = b_.strip_count - 1; n >= 0; --n) {
      const Strip& strip = b_.strips[n];
      const bool partial = strip.kind != Strip::Kind::full;
      compared_ = strip.kind == Strip::Kind::compared;
      for (int64_t key = last_tile(strip); key >= strip.key_begin; key -= kStrip) {
        const bool masked = partial || key + kStrip > b_.key_count;
        if (!b_.plain) {
          score_strip<Tile::general, stats>(key, masked);
        } else if (masked) {
          score_strip<Tile::masked, stats>(key, true);
        } else {
          score_strip<Tile::plain, stats>(key, false);
        }
        if (++depth_ == kDepth) add_values();
      }
    }
    if (depth_ > 0) add_values();
  }

  static int64_t last_tile(const Strip& strip) {
    return strip.key_begin + (strip.key_end - strip.key_begin - 1) / kStrip * kStrip;
  }

  template <Tile kind, bool stats>
  void score_strip(int64_t key, bool masked) {
    strip_key_[depth_] = key;
    if (stats) find_starts(key);
    if constexpr (gated)
      keys_ = {b_.key_gates.first[key / kStrip], b_.key_gates.last[key / kStrip]};
    for (int g = 0; g < groups_; ++g) {
      if (far_) fetch_ahead(g, key - kStrip);
      const Cover cover = kind != Tile::plain && masked ? cover_of_tile(g, key) : Cover::all;
      if (cover == Cover::none) {
        live_[depth_][g] = false;
      } else if (kind != Tile::general && cover == Cover::all) {
        live_[depth_][g] = score_tile<Tile::plain, stats>(g, key, cover);
      } else {
        live_[depth_][g] = score_tile<kind, stats>(g, key, cover);
      }
    }
  }

  FOVEA_INLINE Cover cover_of_tile(int g, int64_t key) const {
    if (!banded_ || compared_) return Cover::unknown;
    const int first = g * kRows;
    const int64_t end = key + kStrip - 1,
                  last = first + kRows < b_.rows ? first + kRows - 1 : b_.rows - 1;
    const int32_t* const position = b_.key_places.position;
    const int32_t document = b_.document[first];
    if (b_.document[last] != document || b_.key_places.document[key] != document ||
        b_.key_places.document[end] != document)
      return Cover::unknown;
    return cover_of(b_.rule, int64_t{b_.position[first]} - position[end],
                    int64_t{b_.position[last]} - position[key]);
  }

  // Group g's share of the strip at `key`: what lies beyond the second-level cache arrives while
  // products run.
  FOVEA_INLINE void fetch_ahead(int g, int64_t key) const {
    if (key < 0) return;
    constexpr int64_t kLine = 64 / sizeof(Word);
    const auto fetch = [g](const Word* strip, int64_t words) FOVEA_ALWAYS {
      const int64_t share = words / kGroups;
      for (int64_t n = 0; n < share; n += kLine) __builtin_prefetch(strip + g * share + n, 0, 2);
    };
    const int64_t columns = b_.value_width.columns;
    fetch(b_.keys + key * b_.key_width.pitch, kStrip * b_.key_width.pitch);
    fetch(b_.values + key / P::kElements * columns, kStrip / P::kElements * columns);
  }

  // False if no pair of the tile is seen: it then costs nothing more.
  template <Tile kind, bool stats>
  FOVEA_INLINE bool score_tile(int g, int64_t key, Cover cover) {
    const int first = g * kRows;
    const bool masked = cover != Cover::all;
    Lanes seen[kRows][2];
    if (kind != Tile::plain && masked && !see(first, key, cover, seen)) return false;
    [[maybe_unused]] GateTile gate;
    const bool open = gated && find_gate(g, key, gate);  // the gate acts
    Float s[kRows][2];
    strip_products<P>(s, b_.key_width, q_ + first * b_.key_width.pitch,
                      b_.keys + key * b_.key_width.pitch);
    const Float none = broadcast(-kInfinity);
    Word* weights = weights_ + first * kWeightPitch<P> + depth_ * (kStrip / P::kElements);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const int row = first + r;
      if (kind == Tile::general) bend(row, key, open && !weighs_ ? gate.value[r] : nullptr, s[r]);
      const Float factor = broadcast(factor_[row]);
      if (kind != Tile::general && open && !weighs_) {
        s[r][0] = s[r][0] * load(gate.value[r]);
        s[r][1] = s[r][1] * load(gate.value[r] + kLanes);
      }
      if (kind != Tile::plain && masked) {
        s[r][0] = choose(seen[r][0], s[r][0], none);
        s[r][1] = choose(seen[r][1], s[r][1], none);
      }
      if (open_[g] > 0) take_reference(g, row, larger(s[r][0], s[r][1]) * factor);
      const Float m = broadcast(reference_[row]);
      Float x[2] = {s[r][0] * factor - m, s[r][1] * factor - m};
      Float low = exp2_lanes<P::kExpDegree>(x[0]), high = exp2_lanes<P::kExpDegree>(x[1]);
      if (open && weighs_) {
        low = low * load(gate.value[r]);
        high = high * load(gate.value[r] + kLanes);
        if (stats) {
          x[0] = x[0] + log2_lanes(load(gate.value[r]));
          x[1] = x[1] + log2_lanes(load(gate.value[r] + kLanes));
        }
      }
      store(sums_ + row * kLanes, load(sums_ + row * kLanes) + (low + high));
      if (stats) observe<kind != Tile::plain>(row, x, low, high);
      if (kind == Tile::general) drop(row, key, low, high);
      P::store_row(weights + r * kWeightPitch<P>, low, high);
    }
    return true;
  }

  // The gate of a tile; false where all its pairs are local.
  FOVEA_INLINE bool find_gate(int g, int64_t key, GateTile& gate) {
    const Reach reach = reach_of(b_.gate, extent_[g], keys_);
    if (reach == Reach::near) return false;
    const int first = g * kRows;
    gate_tile<P, false>(
        b_.gate, reach, gates_ + first * b_.gate.pitch, b_.key_gates.columns + key * b_.gate.pitch,
        [&](int r, int v) FOVEA_ALWAYS {
          const int64_t row = first + r < b_.rows ? first + r : 0;
          return local_lanes(b_.gate, broadcast(b_.position[row]),
                             load(b_.key_places.position + key + v * kLanes));
        },
        gate);
    return true;
  }

  // Keys at the first position of their document, whose weight is the sink mass.
  FOVEA_INLINE void find_starts(int64_t key) {
    start_[0] = load(b_.key_places.position + key) == 0;
    start_[1] = load(b_.key_places.position + key + kLanes) == 0;
    has_start_ = any(start_[0] | start_[1]);
  }

  // Telemetry: sums of P x and of P at the start, the largest x.
  template <bool unseen>
  FOVEA_INLINE void observe(int row, const Float (&x)[2], Float low, Float high) {
    const Float floor = broadcast(-1e30f);  // 0 * -inf would not be 0
    const Float a = unseen ? larger(x[0], floor) : x[0], b = unseen ? larger(x[1], floor) : x[1];
    const int64_t at = row * kLanes;
    store(spread_ + at, load(spread_ + at) + (low * a + high * b));
    store(top_ + at, larger(load(top_ + at), larger(a, b)));
    if (!has_start_) return;
    const Float from = (start_[0] ? low : Float{}) + (start_[1] ? high : Float{});
    store(first_ + at, load(first_ + at) + from);
  }

  FOVEA_INLINE bool see(int first, int64_t key, Cover cover, Lanes (&seen)[kRows][2]) {
    if (cover == Cover::band) return see_band(first, key, seen);
    const Places low = places_at(b_.key_places, key), high = places_at(b_.key_places, key + kLanes);
    Lanes all{};
    if (compared_ && first + kRows <= b_.rows && !b_.rule.opens) {
      const bool wide = b_.key_places.members_high != nullptr;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Int x = broadcast(b_.members_low[first + r]);
        const Int y = wide ? broadcast(b_.members_high[first + r]) : Int{};
        seen[r][0] = meet_lanes(wide, x, y, low);
        seen[r][1] = meet_lanes(wide, x, y, high);
        all |= seen[r][0] | seen[r][1];
      }
      return any(all);
    }
    for (int r = 0; r < kRows; ++r) {
      const int row = first + r;
      if (row >= b_.rows) {
        seen[r][0] = seen[r][1] = Lanes{};
        continue;
      }
      Places query{broadcast(b_.position[row]), broadcast(b_.document[row]),
                   broadcast(b_.group[row]), Int{}};
      if (b_.rule.members != MemberRule::ignored) {
        query.members_low = broadcast(b_.members_low[row]);
        query.members_high = broadcast(b_.members_high[row]);
      }
      seen[r][0] = lanes_of(seen_lanes(b_.rule, query, low));
      seen[r][1] = lanes_of(seen_lanes(b_.rule, query, high));
      all |= seen[r][0] | seen[r][1];
    }
    return any(all);
  }

  FOVEA_INLINE bool see_band(int first, int64_t key, Lanes (&seen)[kRows][2]) const {
    const bool compares = b_.rule.members != MemberRule::ignored;
    const bool wide = b_.key_places.members_high != nullptr;
    Lanes all{};
    for (int v = 0; v < 2; ++v) {
      Places keys;
      keys.position = load(b_.key_places.position + key + v * kLanes);
      if (compares) keys.members_low = load(b_.key_places.members_low + key + v * kLanes);
      if (compares && wide) keys.members_high = load(b_.key_places.members_high + key + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        Lanes common{};
        if (compares) {
          const Int high = wide ? broadcast(b_.members_high[first + r]) : Int{};
          common = meet_lanes(wide, broadcast(b_.members_low[first + r]), high, keys);
        }
        seen[r][v] =
            seen_in_band(b_.rule, broadcast(b_.position[first + r]) - keys.position, common);
        all |= seen[r][v];
      }
    }
    return any(all);
  }

  // From raw products to logits; `gate` multiplies them, null without.
  FOVEA_INLINE void bend(int row, int64_t key, const float* gate, Float (&s)[2]) {
    const int real = row < b_.rows ? row : 0;
    const Int position = broadcast(b_.position[real]);
    const Float scale = broadcast(scale_[row]);
    Float slope;
    for (int v = 0; v < 2; ++v) {
      const Int distance = position - load(b_.key_places.position + key + v * kLanes);
      s[v] = capped(*b_.head[real], s[v] * scale, slope);
      if (gated && gate != nullptr) s[v] = s[v] * load(gate + v * kLanes);
      s[v] = biased(*b_.head[real], s[v], distance);
    }
  }

  FOVEA_INLINE void drop(int row, int64_t key, Float& low, Float& high) {
    if (row >= b_.rows || b_.head[row]->dropout <= 0.0f) return;
    alignas(64) float factors[kStrip];
    keep_keys(*b_.head[row], b_.index[row], key, factors);
    low = low * load(factors);
    high = high * load(factors + kLanes);
  }

  FOVEA_INLINE void take_reference(int g, int row, Float x) {
    if (!fresh_[row]) return;
    const float top = largest(x);
    if (!(top > -kInfinity)) return;
    reference_[row] = top;
    fresh_[row] = false;
    --open_[g];
  }

  void add_totals() {
    for (int64_t r = 0; r < b_.rows; r += kLanes) {
      Float rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) rows[i] = load(sums_ + (r + i) * kLanes);
      store(total_ + r, sum_each(rows));
    }
  }

  bool find_unsafe_rows() {
    bool found = false;
    for (int64_t r = 0; r < groups_ * kRows; ++r) {
      unsafe_[r] = r < b_.rows && !(total_[r] < kSafeSum);
      if (unsafe_[r]) reference_[r] = -kInfinity;
      found |= unsafe_[r];
    }
    return found;
  }

  // Exact maxima of the unsafe rows. Rare, so it goes the general way for every spec.
  void raise_references(const Strip& strip) {
    for (int64_t key = strip.key_begin; key < strip.key_end; key += kStrip) {
      for (int g = 0; g < groups_; ++g) {
        const int first = g * kRows;
        Lanes seen[kRows][2];
        if (!see(first, key, Cover::unknown, seen)) continue;
        if constexpr (gated)
          keys_ = {b_.key_gates.first[key / kStrip], b_.key_gates.last[key / kStrip]};
        [[maybe_unused]] GateTile gate;
        const bool open = gated && !weighs_ && find_gate(g, key, gate);
        Float s[kRows][2];
        strip_products<P>(s, b_.key_width, q_ + first * b_.key_width.pitch,
                          b_.keys + key * b_.key_width.pitch);
        for (int r = 0; r < kRows; ++r) {
          if (!unsafe_[first + r]) continue;
          bend(first + r, key, open ? gate.value[r] : nullptr, s[r]);
          for (int v = 0; v < 2; ++v) {
            const float top = largest(choose(seen[r][v], s[r][v] * kLog2E, broadcast(-kInfinity)));
            if (top > reference_[first + r]) reference_[first + r] = top;
          }
        }
      }
    }
  }

  // O += P V over the strips since the last call.
  void add_values() {
    const int64_t columns = b_.value_width.columns;
    for (int64_t tile = 0; tile < columns; tile += kStrip) {
      const bool wide = columns - tile >= kStrip;
      for (int g = 0; g < groups_; ++g) wide ? add_tile<2>(g, tile) : add_tile<1>(g, tile);
    }
    depth_ = 0;
  }

  template <int N>
  FOVEA_INLINE void add_tile(int g, int64_t tile) {
    constexpr int64_t kWords = kStrip / P::kElements;  // words of a strip of P's row; rows of V
    const int64_t columns = b_.value_width.columns;
    add_to_sums<P, N>(
        out_ + g * kRows * columns + tile, columns, [&](const auto& add) FOVEA_ALWAYS {
          for (int d = 0; d < depth_; ++d) {
            if (!live_[d][g]) continue;
            add(kWords, weights_ + g * kRows * kWeightPitch<P> + d * kWords, kWeightPitch<P>, 1,
                b_.values + strip_key_[d] / P::kElements * columns + tile * kWords);
          }
        });
  }

  // out = O / l, lse = m + log l; the sink is one more key with value 0 (spec 7.5).
  void write() {
    alignas(64) float inverse[kQueryBlock], lse[kQueryBlock];
    const int64_t rows = b_.rows;
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) {
      const float l = total_[r];
      inverse[r] = l == 0.0f ? 0.0f : 1.0f / l;
      lse[r] = l == 0.0f ? -kInfinity : (reference_[r] + fast_log2(l)) * kLn2;
      lse[r] = l != l ? l : lse[r];
    }
    for (int64_t r = 0; r < rows; ++r) {
      if (b_.sink[r] > -kInfinity) join_sink(b_.sink[r], inverse[r], lse[r]);
      const float* from = out_ + r * b_.value_width.columns;
      T* to = b_.out[r];
      for (int64_t c = 0; c < b_.value_width.elements; ++c) from_float(from[c] * inverse[r], to[c]);
      if (b_.lse[r] != nullptr) *b_.lse[r] = lse[r];
      if (b_.stats[r] != nullptr) write_stats(r, inverse[r], lse[r]);
    }
  }

  // With P = 2^x / l: entropy = -sum P ln P, largest weight, weight of the document's start.
  void write_stats(int64_t r, float inverse, float lse) const {
    const float spread = sum(load(spread_ + r * kLanes));
    const float log_l = lse - reference_[r] * kLn2;
    float* to = b_.stats[r];
    to[0] = inverse > 0.0f ? inverse * (total_[r] * log_l - spread * kLn2) : 0.0f;
    to[1] = inverse * __builtin_exp2f(largest(load(top_ + r * kLanes)));
    to[2] = inverse * sum(load(first_ + r * kLanes));
  }

  static void join_sink(float z, float& inverse, float& lse) {
    const float top = z > lse ? z : lse;
    const float joined = top + __builtin_logf(__builtin_expf(z - top) + __builtin_expf(lse - top));
    inverse *= __builtin_expf(lse - joined);
    lse = joined;
  }

  const ForwardBlock<T>& b_;
  const int groups_;
  const bool banded_;                   // tiles may be judged by their ends
  float *q_, *weights_, *out_, *sums_;  // sums_: kLanes partial sums a row
  float *spread_, *top_, *first_;       // the same, for telemetry
  Int start_[2];
  bool has_start_ = false, compared_ = false;
  int depth_ = 0;
  int64_t strip_key_[kDepth];
  bool live_[kDepth][kGroups];
  int open_[kGroups];  // rows of the group without reference
  bool fresh_[kQueryBlock], unsafe_[kQueryBlock];
  const bool far_ = b_.key_count * (b_.key_width.pitch + b_.value_width.columns / P::kElements) >
                    kNearWords;  // keys and values come from beyond the second-level cache
  bool weighs_ = false;          // the gate multiplies weights, not logits
  Extent keys_, extent_[kGroups];
  alignas(64) float gates_[gated ? kQueryBlock * (kMostGateColumns + 3) : 1];
  alignas(64) float reference_[kQueryBlock], total_[kQueryBlock];
  alignas(64) float scale_[kQueryBlock], factor_[kQueryBlock];  // of raw products; to log 2 units
};

template <class T, class P>
void forward_block(const ForwardBlock<T>& block, float* scratch) {
  const FlushDenormals flush;
  [[maybe_unused]] const TileUse tiles;
  if (block.gate.active()) return ForwardRows<T, P, true>(block, scratch).run();
  ForwardRows<T, P, false>(block, scratch).run();
}

}  // namespace
}  // namespace fovea::kernels
