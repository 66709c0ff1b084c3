// Backward flash attention of one block of keys: P is recomputed from lse, so memory stays linear.
//
//   per panel of queries:  S^T = K Q^T and dP^T = V dO^T (R keys x kPanel queries in registers)
//                          P = 2^(logit - lse),  dS = P (dP - delta) * scale,  delta = dO.O - dlse
//   every 4 panels:        dV += P^T dO,  dK += dS^T Q,  dQ += dS K
//   with a gradient of tau: kTurnSums of a query, in float32
//
// Keys are rows here, so P^T and dS^T are left operands as they are. For dQ, dS^T is read along its
// columns; with bfloat16, two rows are first woven into pairs of keys. dK and dV are private to the
// block; dQ goes to the partition's own sums, which query_gradient() adds in order.
//
// With the gate of Focus (`gated`), P = e G with e = 2^(logit - lse). The gradient of z (11.2) is
// dz = e G' (dP - delta): it needs no division, and is bounded by 1 / G. Every 4 panels: dgate_key
// += dz^T gate_query, dgate_query += dz gate_key, in float32.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/attention_gate.h"

namespace fovea::kernels {
namespace {

constexpr int kBackwardDepth = 128 / kPanel;  // panels of queries between updates of the sums
constexpr int kKeyParts = static_cast<int>(kKeyBlock) / kPanel;

template <class P>
constexpr int64_t kScorePitch = (kBackwardDepth * kPanel + kLanes) / P::kElements;

// Floats of the pairs of keys that dQ needs with bfloat16.
template <class P>
constexpr int64_t kWovenFloats =
    P::kElements == 1 ? 0 : kBackwardDepth* kKeyBlock / P::kElements* kPanel;

template <class P>
int64_t backward_floats(const PackedWidth& key, const PackedWidth& value, const GateRule& gate) {
  const int64_t gates = gate.active() ? kKeyBlock * (kScorePitch<Single> + gate.pitch) : 0;
  return kKeyBlock * (2 * kScorePitch<P> + key.columns + value.columns) + kWovenFloats<P> + gates;
}

template <class T, class P, bool gated>
class BackwardKeys {
 public:
  BackwardKeys(const BackwardBlock<T>& block, float* scratch)
      : b_(block),
        banded_(block.ordered && has_bands(block.rule)),
        turns_(block.dq_columns > block.key_width.columns),
        keys_(block.key_count - block.key_begin < kKeyBlock ? block.key_count - block.key_begin
                                                            : kKeyBlock),
        tiles_(keys_) {
    weights_ = scratch;
    slopes_ = weights_ + kKeyBlock * kScorePitch<P>;
    dk_ = slopes_ + kKeyBlock * kScorePitch<P>;
    dv_ = dk_ + kKeyBlock * b_.key_width.columns;
    woven_ = dv_ + kKeyBlock * b_.value_width.columns;
    dz_ = woven_ + kWovenFloats<P>;
    dgate_ = dz_ + kKeyBlock * kScorePitch<Single>;
    if constexpr (gated) {
      weighs_ = multiplies_weights(b_.gate.form);
      adds_ = b_.gate.form == PairGate::Form::log_sigmoid;
      for (int64_t n = 0; n < keys_; ++n)
        extent_[tiles_.of(n)].take(b_.key_places.position[b_.key_begin + n]);
    }
  }

  void run() {
    begin_sums(dk_, b_.key_width.columns, b_.dk_before);
    begin_sums(dv_, b_.value_width.columns, b_.dv_before);
    if constexpr (gated) {
      for (int64_t n = 0; n < kKeyBlock * b_.gate.pitch; ++n) dgate_[n] = 0.0f;
    }
    for (int64_t h = 0; h < b_.head_count; ++h) add_head(b_.heads[h]);
    if constexpr (gated) write_gates();
    if (b_.result == BackwardResult::sums) return leave_sums();
    if (!finite_lanes(dk_, keys_ * b_.key_width.columns) ||
        !finite_lanes(dv_, keys_ * b_.value_width.columns))
      note_not_finite(b_.not_finite);
    for (int64_t n = 0; n < keys_; ++n) {
      T* dk = b_.dk + (b_.key_begin + n) * b_.dk_row;
      T* dv = b_.dv + (b_.key_begin + n) * b_.dv_row;
      const float* from_k = dk_ + n * b_.key_width.columns;
      const float* from_v = dv_ + n * b_.value_width.columns;
      for (int64_t c = 0; c < b_.key_width.elements; ++c) from_float(from_k[c], dk[c]);
      for (int64_t c = 0; c < b_.value_width.elements; ++c) from_float(from_v[c], dv[c]);
    }
  }

 private:
  enum class Tile { plain, masked, general };
  static constexpr int kTall = gated ? kRows : kTallRows;
  static constexpr int kMostTiles = static_cast<int>(kKeyBlock) / kRows;
  static constexpr int kSlices = RowTiles<kTall>(kKeyBlock).count();  // that are prefetched
  static constexpr RowTiles<kTall> kQueryTiles{kPanel};

  void begin_sums(float* sums, int64_t columns, const float* before) const {
    const int64_t begun = before != nullptr ? keys_ : 0;
    for (int64_t n = 0; n < begun; ++n) {
      const int32_t* const rows = b_.before_begin + b_.key_begin + n;
      for (int64_t c = 0; c < columns; c += kLanes) {
        Float x{};
        for (int32_t at = rows[0]; at < rows[1]; ++at)
          x = x + load(before + b_.before[at] * columns + c);
        store(sums + n * columns + c, x);
      }
    }
    for (int64_t n = begun * columns; n < kKeyBlock * columns; ++n) sums[n] = 0.0f;
  }

  void leave_sums() const {
    const int64_t k = b_.key_width.columns, v = b_.value_width.columns;
    float *dk = b_.dk_sums + b_.key_begin * k, *dv = b_.dv_sums + b_.key_begin * v;
    for (int64_t n = 0; n < keys_ * k; ++n) dk[n] = dk_[n];
    for (int64_t n = 0; n < keys_ * v; ++n) dv[n] = dv_[n];
  }

  void add_head(const BackwardHead& head) {
    head_ = &head;
    depth_ = 0;
    for (int64_t n = 0; n < b_.range_count; ++n) {
      const TileRange& range = b_.ranges[n];
      const bool partial = range.kind != TileRange::Kind::full || tiles_.first(row_tiles_) != keys_;
      compared_ = range.kind == TileRange::Kind::compared && !b_.rule.opens;
      for (int64_t query = range.key_begin; query < range.key_end; query += kPanel) {
        if (!b_.plain) {
          score_panel<Tile::general>(query, partial);
        } else if (partial) {
          score_panel<Tile::masked>(query, true);
        } else {
          score_panel<Tile::plain>(query, false);
        }
        if (++depth_ == kBackwardDepth) add_products();
      }
    }
    if (depth_ > 0) add_products();
  }

  template <Tile kind>
  void score_panel(int64_t query, bool masked) {
    panel_query_[depth_] = query;
    panel_row_[depth_] = query & b_.wrap;
    if (turns_)
      for (auto& sums : turn_)
        for (float& sum : sums) sum = 0.0f;
    if constexpr (gated)
      queries_ = {b_.query_gates.first[query / kPanel], b_.query_gates.last[query / kPanel]};
    for (int g = 0; g < row_tiles_; ++g) {
      if (b_.fetches) prefetch_after(query, g);
      live_[depth_][g] = with_rows(tiles_, g, [&]<int R>(Rows<R>) FOVEA_ALWAYS {
        return kind != Tile::plain && masked ? score_masked<kind, R>(g, query)
                                             : score_whole<kind, R>(g, query, Cover::all);
      });
      if (P::kElements == 2 && live_[depth_][g] != 0) weave(g);
    }
    if (turns_) add_turns();
    const int64_t padded = tiles_.first(row_tiles_);
    for (int g = row_tiles_; tiles_.first(g) % kPanel != 0; ++g) live_[depth_][g] = 0;
    for (int part = 0; part * kPanel < padded; ++part) fill_part(part);
  }

  // As score_tile(), of a tile of which some pairs may be unseen.
  template <Tile kind, int R>
  FOVEA_INLINE int score_masked(int g, int64_t query) {
    const Cover cover = cover_of_tile(g, query);
    if constexpr (gated) open_[depth_][g] = false;
    if (cover == Cover::none) return 0;
    if (kind == Tile::masked && cover == Cover::all)
      return score_whole<Tile::plain, R>(g, query, cover);
    if constexpr (kind == Tile::masked && !gated && !P::kTiles) {
      if (cover == Cover::band) {  // often nobody in one half of the queries sees a key
        int halves = 0;
        for (int v = 0; v < 2; ++v)
          halves |= cover_of_tile(g, query, v, v + 1) != Cover::none ? 1 << v : 0;
        if (halves == 0) return 0;
        if (halves != 3) return score_tile<kind, R, 1>(g, query, cover, halves - 1);
      }
    }
    return score_whole<kind, R>(g, query, cover);
  }

  // score_tile() of whole tiles. The general one is long: it is compiled once and called.
  template <Tile kind, int R>
  FOVEA_INLINE int score_whole(int g, int64_t query, Cover cover) {
    if constexpr (kind == Tile::general)
      return score_general<R>(g, query, cover);
    else
      return score_tile<kind, R, 2>(g, query, cover);
  }
  template <int R>
  [[gnu::noinline]] int score_general(int g, int64_t query, Cover cover) {
    return score_tile<Tile::general, R, 2>(g, query, cover);
  }

  // One tile, for the queries' vectors `from` to `to`.
  FOVEA_INLINE Cover cover_of_tile(int g, int64_t panel, int from = 0, int to = 2) const {
    const int64_t query = panel + from * kLanes, last = panel + to * kLanes - 1;
    const int64_t key = b_.key_begin + tiles_.first(g), last_key = key + tiles_.rows(g) - 1;
    if (!banded_ || compared_ || last_key >= b_.key_begin + keys_) return Cover::unknown;
    const PlaceColumns &keys = b_.key_places, &queries = b_.query_places;
    const int32_t document = keys.document[key];
    if (keys.document[last_key] != document || queries.document[query] != document ||
        queries.document[last] != document)
      return Cover::unknown;
    return cover_of(b_.rule, int64_t{queries.position[query]} - keys.position[last_key],
                    int64_t{queries.position[last]} - keys.position[key], keys.open[key],
                    keys.open[last_key]);
  }

  // The row tiles of the panel of keys `part`: the first and the last.
  int first_of(int part) const { return tiles_.of(part * kPanel); }
  int last_of(int part) const { return tiles_.of(part * kPanel + kPanel - 1); }

  // Whether a row tile of the part sees something.
  FOVEA_INLINE bool uses(int depth, int part) const {
    int some = 0;
    for (int g = first_of(part); g <= last_of(part); ++g) some |= live_[depth][g];
    return some != 0;
  }

  // dQ reads whole parts: row tiles that see nothing become zeros where another one sees something.
  FOVEA_INLINE void fill_part(int part) {
    if (!uses(depth_, part)) return;
    for (int g = first_of(part); g <= last_of(part); ++g) {
      if (live_[depth_][g] != 0) continue;
      clear_slopes(g);
      if constexpr (P::kElements == 2) weave(g);
    }
  }

  // The part that falls to row tile g of the next panel's packed queries and dQ rows: rows are
  // short, which defeats the hardware's prefetching outside the second-level cache.
  FOVEA_INLINE void prefetch_after(int64_t query, int g) const {
    constexpr int64_t kLine = 64 / sizeof(Word);
    const int64_t next = (query + kPanel) & b_.wrap;
    const auto part = [g](const float* panel, int64_t floats) {
      const int64_t slice = floats / kSlices;
      for (int64_t n = 0; n < slice; n += kLine) __builtin_prefetch(panel + g * slice + n, 0, 2);
    };
    const PackedWidth &key = b_.key_width, &value = b_.value_width;
    part(head_->q_columns + next * key.pitch, kPanel * key.pitch);
    part(head_->dout_columns + next * value.pitch, kPanel * value.pitch);
    part(head_->q_rows + next / P::kElements * key.columns, kPanel / P::kElements * key.columns);
    part(head_->dout_rows + next / P::kElements * value.columns,
         kPanel / P::kElements * value.columns);
    part(head_->dq + next * b_.dq_columns, kPanel * b_.dq_columns);
  }

  // N vectors of queries from `half` of the panel on. Returns which halves (bits 0 and 1) have
  // weights: none if no pair is seen, which then costs nothing more.
  template <Tile kind, int R, int N>
  FOVEA_INLINE int score_tile(int g, int64_t panel, Cover cover, int half = 0) {
    const int64_t first = tiles_.first(g);
    const int64_t key = b_.key_begin + first, query = panel + half * kLanes;
    const int64_t row = panel & b_.wrap;
    const bool masked = cover != Cover::all;
    Lanes seen[R][N];
    if constexpr (gated) open_[depth_][g] = false;
    if constexpr (N == 1)
      see_band(key, query, seen);
    else if (kind != Tile::plain && masked && !see(key, query, cover, seen))
      return 0;
    [[maybe_unused]] GateTile gate;
    const Reach reach = gated ? reach_of(b_.gate, queries_, extent_[g]) : Reach::near;
    const bool open = reach != Reach::near;  // the gate acts
    if (gated && open) find_gate(g, query, reach, gate);
    [[maybe_unused]] float* const dz = dz_ + first * kScorePitch<Single> + depth_ * kPanel;
    alignas(64) float p[R][kPanel], slope[R][kPanel], raw[R][kPanel];
    Word* weights = weights_ + first * kScorePitch<P> + depth_ * (kPanel / P::kElements);
    Word* slopes = slopes_ + first * kScorePitch<P> + depth_ * (kPanel / P::kElements);
    Float s[R][N];
    panel_products<P>(s, b_.key_width, b_.k_natural + key * b_.key_width.pitch,
                      head_->q_columns + row * b_.key_width.pitch + half * kLanes);
    if (turns_) store_raw(s, raw);
    // Numbers of queries are loaded behind each product, whose sums fill the registers.
    Float scale[N], lse[N], factor[N], delta[N];
    for (int v = 0; v < N; ++v) {
      scale[v] = load(head_->scale + query + v * kLanes);
      factor[v] = scale[v] * kLog2E;
      lse[v] = load(head_->lse2 + query + v * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      Float x[N];
#pragma GCC unroll 2
      for (int v = 0; v < N; ++v) {
        if (kind == Tile::general) {
          Float cap_slope;
          const Int distance =
              load(b_.query_places.position + query + v * kLanes) - b_.key_places.position[key + r];
          s[r][v] = capped<P::kExpDegree>(head_->rule, s[r][v] * scale[v], cap_slope);
          if (gated && open && adds_) {
            s[r][v] = s[r][v] + load(gate.value[r] + v * kLanes);
          } else if (gated && open && !weighs_) {
            const Float value = load(gate.value[r] + v * kLanes);
            store(gate.slope[r] + v * kLanes, s[r][v] * load(gate.slope[r] + v * kLanes));
            s[r][v] = s[r][v] * value;
            cap_slope = cap_slope * value;
          }
          s[r][v] = biased(head_->rule, s[r][v], distance);
          store(slope[r] + v * kLanes, cap_slope);
          x[v] = s[r][v] * kLog2E - lse[v];
        } else {
          x[v] = s[r][v] * factor[v] - lse[v];
        }
        x[v] = kind != Tile::plain && masked ? exp2_seen<P::kExpDegree>(seen[r][v], x[v])
                                             : exp2_lanes<P::kExpDegree>(x[v]);
        if (gated && open) {
          const bool vary = slopes_vary(b_.gate, reach);
          store(dz + r * kScorePitch<Single> + v * kLanes,
                vary ? x[v] * load(gate.slope[r] + v * kLanes) : x[v]);
          if (weighs_) x[v] = x[v] * load(gate.value[r] + v * kLanes);
        }
        store(p[r] + v * kLanes, x[v]);
      }
      Word* const to = weights + r * kScorePitch<P>;
      if constexpr (N == 1)
        P::store_half(to + half * (kLanes / P::kElements), x[0]);
      else if (kind != Tile::general || head_->rule.dropout <= 0.0f)
        P::store_row(to, x[0], x[1]);
    }
    panel_products<P>(s, b_.value_width, b_.v_natural + key * b_.value_width.pitch,
                      head_->dout_columns + row * b_.value_width.pitch + half * kLanes);
    for (int v = 0; v < N; ++v) {
      scale[v] = load(head_->scale + query + v * kLanes);
      delta[v] = load(head_->delta + query + v * kLanes);
    }
    if constexpr (N == 2)
      if (kind == Tile::general && head_->rule.dropout > 0.0f) drop(key, query, p, s, weights);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      Float ds[N];
#pragma GCC unroll 2
      for (int v = 0; v < N; ++v) {
        const Float dlog = s[r][v] - delta[v];
        if (turns_) {
          Float turn = load(p[r] + v * kLanes) * scale[v] * load(raw[r] + v * kLanes);
          if (kind == Tile::general) turn = turn * load(slope[r] + v * kLanes);
          add_turn(half + v, turn, load(p[r] + v * kLanes), s[r][v]);
        }
        ds[v] = load(p[r] + v * kLanes) * dlog;
        if (gated && open) {
          float* const at = dz + r * kScorePitch<Single> + v * kLanes;
          store(at, load(at) * dlog);
        }
        if (kind == Tile::general) {
          if (head_->dbias != nullptr) add_bias(key + r, query + v * kLanes, ds[v]);
          ds[v] = ds[v] * load(slope[r] + v * kLanes);
        }
        ds[v] = ds[v] * scale[v];
      }
      // dQ reads both halves.
      Word* const to = slopes + r * kScorePitch<P>;
      if constexpr (N == 1)
        half == 0 ? P::store_row(to, ds[0], Float{}) : P::store_row(to, Float{}, ds[0]);
      else
        P::store_row(to, ds[0], ds[1]);
    }
    if constexpr (gated) open_[depth_][g] = open;
    return N == 2 ? 3 : 1 << half;
  }

  template <int R, int N>
  FOVEA_INLINE static void store_raw(const Float (&s)[R][N], float (&raw)[R][kPanel]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < N; ++v) store(raw[r] + v * kLanes, s[r][v]);
  }
  FOVEA_INLINE void add_turn(int v, Float turn, Float weight, Float dp) {
    const auto add = [&](int n, Float x, Float y) FOVEA_ALWAYS {
      float* const at = turn_[n] + v * kLanes;
      store(at, x * y + load(at));
    };
    add(0, turn, dp);
    add(1, turn, broadcast(1.0f));
    add(2, weight, dp);
    add(3, weight, broadcast(1.0f));
  }
  void add_turns() const {
    float* at = head_->dq + panel_row_[depth_] * b_.dq_columns + b_.key_width.columns;
    for (int q = 0; q < kPanel; ++q, at += b_.dq_columns)
      for (int64_t n = 0; n < kTurnSums; ++n) at[n] += turn_[n][q];
  }

  [[gnu::noinline]] void find_gate(int g, int64_t query, Reach reach, GateTile& gate) const {
    const int64_t key = b_.key_begin + g * kRows, pitch = b_.gate.pitch;
    gate_tile<P, true>(
        b_.gate, reach, b_.key_gates + key * pitch, b_.query_gates.columns + query * pitch,
        [&](int r, int v) FOVEA_ALWAYS {
          return local_lanes(b_.gate, load(b_.query_places.position + query + v * kLanes),
                             broadcast(b_.key_places.position[key + r]));
        },
        gate);
  }

  template <int R, int N>
  FOVEA_INLINE bool see_band(int64_t key, int64_t query, Lanes (&seen)[R][N]) const {
    const bool compares = b_.rule.members != MemberRule::ignored;
    const bool wide = compares && b_.key_places.members_high != nullptr;
    Lanes all{};
    for (int v = 0; v < N; ++v) {
      const int64_t at = query + v * kLanes;
      LanePlaces queries;
      queries.position = load(b_.query_places.position + at);
      if (compares) queries.members_low = load(b_.query_places.members_low + at);
      if (wide) queries.members_high = load(b_.query_places.members_high + at);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        Lanes common{};
        if (compares) {
          const Int high = wide ? broadcast(b_.key_places.members_high[key + r]) : Int{};
          common = meet_lanes(wide, broadcast(b_.key_places.members_low[key + r]), high, queries);
        }
        seen[r][v] = seen_in_band(
            b_.rule, queries.position - broadcast(b_.key_places.position[key + r]), common);
        all |= seen[r][v];
      }
    }
    return any(all);
  }

  template <int R>
  FOVEA_INLINE bool see(int64_t key, int64_t query, Cover cover, Lanes (&seen)[R][2]) {
    if (cover == Cover::band) return see_band(key, query, seen);
    const LanePlaces low = places_at(b_.query_places, query),
                     high = places_at(b_.query_places, query + kLanes);
    Lanes all{};
    const bool wide = b_.key_places.members_high != nullptr;
    for (int r = 0; compared_ && r < R; ++r) {
      const Int x = broadcast(b_.key_places.members_low[key + r]);
      const Int y = wide ? broadcast(b_.key_places.members_high[key + r]) : Int{};
      seen[r][0] = meet_lanes(wide, x, y, low);
      seen[r][1] = meet_lanes(wide, x, y, high);
      all |= seen[r][0] | seen[r][1];
    }
    for (int r = 0; !compared_ && r < R; ++r) {
      const LanePlaces at = place_of(b_.key_places, key + r);
      seen[r][0] = lanes_of(seen_lanes(b_.rule, low, at));
      seen[r][1] = lanes_of(seen_lanes(b_.rule, high, at));
      all |= seen[r][0] | seen[r][1];
    }
    return any(all);
  }

  // Dropout Z acts on P in dV and on dP in dS.
  template <int R>
  FOVEA_INLINE void drop(int64_t key, int64_t query, const float (&p)[R][kPanel], Float (&dp)[R][2],
                         Word* weights) {
    alignas(64) float factors[4][kPanel];
    for (int r = 0; r < R; ++r) {
      const int64_t at = (key + r) % 4;
      if (r == 0 || at == 0)
        keep_queries(head_->rule, b_.first_index + query, key + r - at, factors[0]);
      const Float low = load(factors[at]), high = load(factors[at] + kLanes);
      dp[r][0] = dp[r][0] * low;
      dp[r][1] = dp[r][1] * high;
      P::store_row(weights + r * kScorePitch<P>, load(p[r]) * low, load(p[r] + kLanes) * high);
    }
  }

  FOVEA_INLINE void add_bias(int64_t key, int64_t query, Float ds) {
    add_bias_gradient(head_->rule,
                      load(b_.query_places.position + query) - b_.key_places.position[key], ds,
                      head_->dbias);
  }

  FOVEA_INLINE void clear_slopes(int g) {
    Word* slopes = slopes_ + tiles_.first(g) * kScorePitch<P> + depth_ * (kPanel / P::kElements);
    for (int r = 0; r < tiles_.rows(g); ++r)
      P::store_row(slopes + r * kScorePitch<P>, Float{}, Float{});
  }

  // bfloat16: [panel][pair of keys][query] words from two neighbouring rows of dS^T.
  FOVEA_INLINE void weave([[maybe_unused]] int g) {
    if constexpr (P::kElements == 2) {
      const Word* slopes = slopes_ + g * kRows * kScorePitch<P> + depth_ * (kPanel / 2);
      Word* to = woven_ + (depth_ * kKeyBlock + g * kRows) / 2 * kPanel;
      for (int r = 0; r < kRows; r += 2, to += kPanel) {
        Float low, high;
        P::weave(load(slopes + r * kScorePitch<P>), load(slopes + (r + 1) * kScorePitch<P>), low,
                 high);
        store(to, low);
        store(to + kLanes, high);
      }
      if constexpr (P::kTiles) turn_pairs(woven_ + (depth_ * kKeyBlock + g * kRows) / 2 * kPanel);
    }
  }

  void add_products() {
    add_to_keys(dv_, b_.value_width.columns, weights_, head_->dout_rows);
    add_to_keys(dk_, b_.key_width.columns, slopes_, head_->q_rows);
    add_to_queries();
    if constexpr (gated) {
      add_query_gates();
      for (int g = 0; g < row_tiles_; ++g) add_key_gates(g);
    }
    depth_ = 0;
  }

  // Four columns at a time: dgate_query[column][queries] += key factors x dz^T.
  void add_query_gates() {
    const int64_t pitch = b_.gate.pitch;
    for (int d = 0; d < depth_; ++d) {
      bool any_open = false;
      for (int g = 0; g < row_tiles_; ++g) any_open |= open_[d][g];
      for (int64_t c = 0; c < pitch && any_open; c += 4) {
        float* const at = head_->dgate + panel_query_[d] * pitch + c * kPanel;
        Float sums[4][2];
        load_tile(sums, at, kPanel);
        for (int g = 0; g < row_tiles_; ++g) {
          if (!open_[d][g]) continue;
          const int64_t row = g * kRows;
          multiply_add<Single>(sums, kRows, b_.key_gates + (b_.key_begin + row) * pitch + c, 1,
                               pitch, dz_ + row * kScorePitch<Single> + d * kPanel,
                               kScorePitch<Single>);
        }
        store_tile(sums, at, kPanel);
      }
    }
  }

  // kGateKeys keys x 4 columns at a time, each with a vector of partial sums over the queries.
  static constexpr int kGateKeys = kLanes / 4;

  void add_key_gates(int g) {
    const int64_t pitch = b_.gate.pitch;
    bool any_open = false;
    for (int d = 0; d < depth_; ++d) any_open |= open_[d][g];
    if (!any_open) return;
    for (int64_t key = g * kRows; key < (g + 1) * kRows; key += kGateKeys) {
      for (int64_t c = 0; c < pitch; c += 4) {
        Float sums[kLanes] = {};
        for (int d = 0; d < depth_; ++d) {
          if (!open_[d][g]) continue;
          const float* factors = b_.query_gates.columns + panel_query_[d] * pitch + c * kPanel;
          const float* dz = dz_ + key * kScorePitch<Single> + d * kPanel;
          for (int v = 0; v < 2; ++v) {
            Float right[4];
#pragma GCC unroll 4
            for (int n = 0; n < 4; ++n) right[n] = load(factors + n * kPanel + v * kLanes);
#pragma GCC unroll 4
            for (int r = 0; r < kGateKeys; ++r) {
              const Float left = load(dz + r * kScorePitch<Single> + v * kLanes);
#pragma GCC unroll 4
              for (int n = 0; n < 4; ++n) sums[4 * r + n] = left * right[n] + sums[4 * r + n];
            }
          }
        }
        float* const at = dgate_ + (key * pitch + c * kGateKeys);  // [kGateKeys][4] together
        store(at, load(at) + sum_each(sums));
      }
    }
  }

  void write_gates() const {
    const int64_t pitch = b_.gate.pitch;
    for (int64_t n = 0; n < keys_; ++n) {
      const float* from = dgate_ + n / kGateKeys * kGateKeys * pitch + n % kGateKeys * 4;
      float* to = b_.dgate + (b_.key_begin + n) * pitch;
      for (int64_t c = 0; c < pitch; ++c) to[c] = from[c / 4 * kLanes + c % 4];
    }
  }

  // sums[keys][columns] += scores^T[keys][queries] rows[queries][columns]
  void add_to_keys(float* sums, int64_t columns, const Word* scores, const Word* rows) {
    for (int64_t tile = 0; tile < columns; tile += kPanel) {
      const bool wide = columns - tile >= kPanel;
      for (int g = 0; g < row_tiles_; ++g) {
        with_rows(tiles_, g, [&]<int R>(Rows<R>) FOVEA_ALWAYS {
          wide ? add_key_tile<R, 2>(g, tile, columns, sums, scores, rows)
               : add_key_tile<R, 1>(g, tile, columns, sums, scores, rows);
        });
      }
    }
  }

  template <int R, int N>
  FOVEA_INLINE void add_key_tile(int g, int64_t tile, int64_t columns, float* sums,
                                 const Word* scores, const Word* rows) {
    constexpr int64_t kWords = kPanel / P::kElements;
    const int64_t first = tiles_.first(g);
    if constexpr (kPrefetchesSums)
      prefetch_sums<R, N>(sums + (first + R) * columns + tile, columns);
    add_to_sums<P, N, R>(
        sums + first * columns + tile, columns, true, [&](const auto& add) FOVEA_ALWAYS {
          for (int d = 0; d < depth_; ++d) {
            const Word* const left = scores + first * kScorePitch<P> + d * kWords;
            const Word* const right = rows + panel_row_[d] / P::kElements * columns + tile * kWords;
            if (live_[d][g] == 3) {
              add(kWords, left, kScorePitch<P>, 1, right);
            } else if (live_[d][g] != 0) {
              const int64_t from = live_[d][g] == 2 ? kWords / 2 : 0;
              add(kWords / 2, left + from, kScorePitch<P>, 1, right + from * N * kLanes);
            }
          }
        });
  }

  // dq[queries][columns] += dS[queries][keys] k[keys][columns]
  void add_to_queries() {
    const int64_t columns = b_.key_width.columns;
    for (int d = 0; d < depth_; ++d) {
      bool used[kKeyParts] = {};
      for (int part = 0; part * kPanel < keys_; ++part) used[part] = uses(d, part);
      for (int64_t tile = 0; tile < columns; tile += kPanel) {
        const bool wide = columns - tile >= kPanel;
        for (int n = 0; n < kQueryTiles.count(); ++n) {
          with_rows(kQueryTiles, n, [&]<int R>(Rows<R>) FOVEA_ALWAYS {
            const int64_t r = kQueryTiles.first(n);
            wide ? add_query_tile<R, 2>(d, r, tile, used) : add_query_tile<R, 1>(d, r, tile, used);
          });
        }
      }
    }
  }

  template <int R, int N>
  FOVEA_INLINE void add_query_tile(int d, int64_t r, int64_t tile, const bool (&used)[kKeyParts]) {
    constexpr int64_t kWords = kPanel / P::kElements;
    const int64_t columns = b_.key_width.columns;
    if constexpr (kPrefetchesSums)
      prefetch_sums<R, N>(head_->dq + (panel_row_[d] + r + R) * b_.dq_columns + tile,
                          b_.dq_columns);
    add_to_sums<P, N, R>(
        head_->dq + (panel_row_[d] + r) * b_.dq_columns + tile, b_.dq_columns, true,
        [&](const auto& add) FOVEA_ALWAYS {
          for (int part = 0; part < kKeyParts; ++part) {
            if (!used[part]) continue;
            const Word* k =
                b_.k_rows + (b_.key_begin + part * kPanel) / P::kElements * columns + tile * kWords;
            const Word* woven = woven_ + (d * kKeyBlock + part * kPanel) / 2 * kPanel;
            if constexpr (P::kElements == 1) {
              add(kWords, slopes_ + part * kPanel * kScorePitch<P> + d * kPanel + r, 1,
                  kScorePitch<P>, k);
            } else if constexpr (P::kTiles) {
              add(kWords, woven + r * kWords, kWords, 1, k);  // turned: rows are queries
            } else {
              add(kWords, woven + r, 1, kPanel, k);
            }
          }
        });
  }

  const BackwardBlock<T>& b_;
  const BackwardHead* head_ = nullptr;
  const bool banded_;  // tiles may be judged by their ends
  const bool turns_;   // the gradient of tau is wanted
  const int64_t keys_;
  const RowTiles<kTall> tiles_;  // of the keys
  const int row_tiles_ = tiles_.count();
  alignas(64) float turn_[kTurnSums][kPanel];  // of the panel's queries
  bool compared_ = false;
  Word *weights_, *slopes_;  // P^T and dS^T: [kKeyBlock][kScorePitch]
  float *dk_, *dv_;
  Word* woven_;
  int depth_ = 0;
  int64_t panel_query_[kBackwardDepth], panel_row_[kBackwardDepth];
  // Which halves of the panel's tile have weights.
  int live_[kBackwardDepth][kMostTiles];
  // Gradient of z by pairs: [kKeyBlock][kScorePitch<Single>].
  float* dz_ = nullptr;
  // Gradients of the keys' factors: [kKeyBlock / kGateKeys][pitch / 4][kGateKeys][4].
  float* dgate_ = nullptr;
  // Whether the gate multiplies weights (and not logits), and whether it is added to logits.
  bool weighs_ = false, adds_ = false;
  bool open_[gated ? kBackwardDepth : 1][kMostTiles];
  Extent queries_, extent_[kMostTiles];
};

template <class T, class P, bool gated = false>
void backward_block(const BackwardBlock<T>& block, float* scratch) {
  const FlushDenormals flush;
  [[maybe_unused]] const TileUse tiles;
  BackwardKeys<T, P, gated>(block, scratch).run();
}

}  // namespace
}  // namespace fovea::kernels
