// Forward flash attention of one block of query rows.
//
//   panel of keys ->   S = Q K^T (R x kPanel sums in registers) -> logit, mask -> P = 2^(x - m)
//   every 4 panels ->  O += P V
//
// There is no pass for the maximum, and O is not rescaled. Panels are walked from the nearest keys
// backwards. A row's reference m is the largest logit of the first panel in which the row sees a
// key. Float32's exponent absorbs larger logits of later panels; biases by distance grow towards
// the near keys. A row whose sum leaves the safe range gets its exact maximum, and the block runs
// again; the other rows then repeat the same bits. So a row never depends on keys that it does not
// see, nor on its neighbours.
//
// The gate of Focus (`gated`) multiplies P after the reference is taken, which bounds the gated
// logits too, or the logit; tiles of local pairs know nothing of it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/attention_gate.h"
#include "fovea/kernels/cpu/pointwise/attention_prefetch.h"
#include "fovea/kernels/cpu/pointwise/attention_seen.h"

namespace fovea::kernels {
namespace {

constexpr int kDepth = 4;  // panels between two updates of O: amortises loading and storing O
constexpr int64_t kNearWords = 1 << 17;  // half of a second-level cache of 1 MiB
constexpr float kSafeSum = 0x1p64f;      // beyond it a sum or O could overflow

template <class P>
constexpr int64_t kWeightPitch =
    (kDepth * kPanel + kLanes) / P::kElements;  // an odd number of vectors: no cache set twice

inline int64_t forward_floats(const PackedWidth& key, const PackedWidth& value) {
  return kQueryBlock * (key.pitch + kWeightPitch<Single> + value.columns + 4 * kLanes);
}

template <class T, class P, bool gated>
class ForwardRows {
 public:
  ForwardRows(const ForwardBlock<T>& block, float* scratch)
      : b_(block), tiles_(block.rows), mask_(block) {
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
      for (int64_t n = 0; n < b_.range_count; ++n) raise_references(b_.ranges[n]);
      pass();
      add_totals();
    }
    b_.result == ForwardResult::states ? write_states() : write();
  }

 private:
  enum class Tile { plain, masked, general };
  static constexpr int kTall = gated ? kRows : kTallRows;
  static constexpr int kMostTiles = static_cast<int>(kQueryBlock) / kRows;
  static constexpr int kSlices = RowTiles<kTall>(kQueryBlock).count();  // that are prefetched

  void load_queries() {
    const int64_t pitch = b_.key_width.pitch;
    for (int64_t r = 0; r < padded_; ++r) {
      const bool real = r < b_.rows;
      const int64_t width = real ? b_.key_width.elements : 0;
      copy_row<T, P>(b_.q[real ? r : 0], width, pitch, q_ + r * pitch);
      scale_[r] = real ? b_.scale[r] : 1.0f;
      factor_[r] = b_.plain ? scale_[r] * kLog2E : kLog2E;
      reference_[r] = 0.0f;
      fresh_[r] = real;
      unsafe_[r] = false;
    }
    for (int g = 0; g < row_tiles_; ++g) {
      const int64_t remaining = b_.rows - tiles_.first(g);
      open_[g] = remaining < tiles_.rows(g) ? static_cast<int>(remaining) : tiles_.rows(g);
    }
    if constexpr (gated) load_gates();
  }

  void load_gates() {
    const int64_t pitch = b_.gate.pitch;
    weighs_ = multiplies_weights(b_.gate.form);
    adds_ = b_.gate.form == PairGate::Form::log_sigmoid;
    for (int64_t r = 0; r < padded_; ++r) {
      for (int64_t c = 0; c < pitch; ++c)
        gates_[r * pitch + c] = r < b_.rows ? b_.query_gate[r][c] : 0.0f;
      if (r % kRows == 0) extent_[r / kRows] = {};
      if (r < b_.rows) extent_[r / kRows].take(b_.position[r]);
    }
  }

  // All panels with the present references, the nearest keys first.
  void pass() {
    const int64_t rows = padded_;
    for (int64_t n = 0; n < rows * kLanes; ++n) sums_[n] = 0.0f;
    depth_ = 0;
    const bool stats = b_.stats[0] != nullptr;
    for (int64_t n = 0; stats && n < rows * kLanes; ++n) {
      spread_[n] = first_[n] = 0.0f;
      top_[n] = -kInfinity;
    }
    for (int g = 0; g < row_tiles_; ++g) begun_[g] = b_.states != nullptr && begin_rows(g, stats);
    prefetch_.begin(tiles());
    stats ? visit_ranges<true>() : visit_ranges<false>();
    for (int g = 0; g < row_tiles_; ++g) {
      if (!begun_[g]) clear_out(tiles_.first(g), tiles_.rows(g));
    }
  }

  int64_t tiles() const {
    int64_t all = 0;
    for (int64_t n = 0; n < b_.range_count; ++n)
      all += (b_.ranges[n].key_end - b_.ranges[n].key_begin + kPanel - 1) / kPanel * row_tiles_;
    return all;
  }

  void clear_out(int64_t row, int64_t rows) {
    const int64_t columns = b_.value_width.columns;
    for (int64_t n = row * columns; n < (row + rows) * columns; ++n) out_[n] = 0.0f;
  }

  // Begins the rows of row tile g with the states of earlier passes; false if there are none.
  bool begin_rows(int g, bool stats) {
    const int64_t first = tiles_.first(g), end = tiles_.first(g + 1),
                  last = end < b_.rows ? end : b_.rows;
    int64_t all = 0;
    for (int64_t r = first; r < last; ++r) all += b_.earlier_count[r];
    if (all == 0) return false;
    for (int64_t r = first; r < last; ++r) {
      if (!merge_states(r, stats)) clear_out(r, 1);
    }
    clear_out(last, end - last);
    return true;
  }

  int64_t place_of_key(int64_t key) const {
    return key < b_.kept ? key : b_.kept + (key & b_.wrap);
  }
  const Word* keys_at(int64_t key) const {
    return b_.keys + place_of_key(key) * b_.key_width.pitch;
  }
  const Word* values_at(int64_t key) const {
    return b_.values + place_of_key(key) / P::kElements * b_.value_width.columns;
  }

  // A row's states summed under one reference; false if they have seen no key.
  bool merge_states(int64_t r, bool stats) {
    const int64_t columns = b_.value_width.columns, size = row_state(b_.value_width);
    const auto earlier = [&](int64_t n) { return b_.states + b_.earlier[r][n] * size; };
    float top = -kInfinity;
    bool seen = false;
    for (int64_t n = 0; n < b_.earlier_count[r]; ++n) {
      const RowState& state = state_behind(earlier(n), b_.value_width);
      if (state.total == 0.0f) continue;
      seen = true;
      if (state.reference > top) top = state.reference;
    }
    if (!seen) return false;
    if (top == -kInfinity) top = 0.0f;  // of sums that are NaN
    if (fresh_[r]) {
      reference_[r] = top;
      fresh_[r] = false;
      --open_[tiles_.of(r)];
    } else if (unsafe_[r] && top > reference_[r]) {
      reference_[r] = top;
    }
    RowState row{.reference = reference_[r], .largest = -kInfinity};
    bool begun = false;
    for (int64_t n = 0; n < b_.earlier_count[r]; ++n) {
      const float* sums = earlier(n);
      const RowState& state = state_behind(sums, b_.value_width);
      if (state.total == 0.0f) continue;
      const float factor = merge(row, state, stats);
      float* out = out_ + r * columns;
      for (int64_t c = 0; c < columns; c += kLanes) {
        const Float before = begun ? load(out + c) : Float{};
        store(out + c, before + factor * load(sums + c));
      }
      begun = true;
    }
    sums_[r * kLanes] = row.total;
    if (!stats) return true;
    spread_[r * kLanes] = row.spread;
    first_[r * kLanes] = row.first;
    top_[r * kLanes] = row.largest;
    return true;
  }

  void write_states() const {
    const int64_t columns = b_.value_width.columns;
    for (int64_t r = 0; r < b_.rows; ++r) {
      float* to = b_.state_out[r];
      for (int64_t c = 0; c < columns; ++c) to[c] = out_[r * columns + c];
      RowState& state = state_behind(to, b_.value_width);
      state.reference = reference_[r];
      state.total = total_[r];
      if (b_.stats[r] == nullptr) continue;
      state.spread = sum(load(spread_ + r * kLanes));
      state.largest = largest(load(top_ + r * kLanes));
      state.first = sum(load(first_ + r * kLanes));
    }
  }

  template <bool stats>
  void visit_ranges() {
    for (int64_t n = b_.range_count - 1; n >= 0; --n) {
      const TileRange& range = b_.ranges[n];
      const bool partial = range.kind != TileRange::Kind::full;
      compared_ = range.kind == TileRange::Kind::compared;
      for (int64_t key = last_tile(range); key >= range.key_begin; key -= kPanel) {
        const bool masked = partial || key + kPanel > b_.key_count;
        if (!b_.plain) {
          score_panel<Tile::general, stats>(key, masked);
        } else if (masked) {
          score_panel<Tile::masked, stats>(key, true);
        } else {
          score_panel<Tile::plain, stats>(key, false);
        }
        if (++depth_ == kDepth) add_values();
      }
    }
    if (depth_ > 0) add_values();
  }

  static int64_t last_tile(const TileRange& range) {
    return range.key_begin + (range.key_end - range.key_begin - 1) / kPanel * kPanel;
  }

  template <Tile kind, bool stats>
  void score_panel(int64_t key, bool masked) {
    panel_values_[depth_] = values_at(key);
    if (stats) find_starts(key);
    if constexpr (gated)
      keys_ = {b_.key_gates.first[key / kPanel], b_.key_gates.last[key / kPanel]};
    for (int g = 0; g < row_tiles_; ++g) {
      if (far_) prefetch_panel(g, key - kPanel);
      prefetch_.fetch_some();
      live_[depth_][g] = with_rows(tiles_, g, [&]<int R>(Rows<R>) FOVEA_ALWAYS {
        return kind != Tile::plain && masked ? score_masked<kind, stats, R>(g, key)
                                             : score_whole<kind, stats, R>(g, key, nullptr);
      });
    }
  }

  // Row tile g's slice of the panel at `key`: data outside the second-level cache arrives while
  // products run.
  FOVEA_INLINE void prefetch_panel(int g, int64_t key) const {
    if (key < 0) return;
    constexpr int64_t kLine = 64 / sizeof(Word);
    const auto fetch = [g](const Word* panel, int64_t words) FOVEA_ALWAYS {
      const int64_t slice = words / kSlices;
      for (int64_t n = 0; n < slice; n += kLine) __builtin_prefetch(panel + g * slice + n, 0, 2);
    };
    fetch(keys_at(key), kPanel * b_.key_width.pitch);
    fetch(values_at(key), kPanel / P::kElements * b_.value_width.columns);
  }

  // As score_tile(), of a tile of which some pairs may be unseen; none if all are, which then costs
  // nothing more.
  template <Tile kind, bool stats, int R>
  FOVEA_INLINE int score_masked(int g, int64_t key) {
    const Cover cover = compared_ ? Cover::unknown : mask_.cover(g, key);
    if (cover == Cover::none) return 0;
    constexpr Tile whole = kind == Tile::masked ? Tile::plain : kind;
    if (cover == Cover::all) return score_whole<whole, stats, R>(g, key, nullptr);
    // Across a bound of distances, often half of the tile is seen by nobody.
    constexpr bool kHalves = kind == Tile::masked && !stats && !gated && !P::kTiles;
    int halves = 3;
    Lanes seen[R][2], half[R][1];
    const int64_t first = tiles_.first(g);
    if (cover == Cover::band) {
      if (kHalves) halves = live_halves(g, key);
      if (halves == 3)
        mask_.by_band(first, key, seen);
      else if (halves != 0)
        mask_.by_band(first, key + (halves == 2 ? kLanes : 0), half);
    } else if (compared_ && mask_.sets_decide(g)) {
      if (!mask_.by_sets(g, key, seen)) return 0;
    } else if (!mask_.by_pairs(first, key, seen)) {
      return 0;
    } else if (kHalves) {
      halves = seen_half(seen, half);
    }
    if constexpr (kHalves) {
      if (halves == 0) return 0;
      if (halves != 3) return score_tile<kind, stats, R, 1>(g, key, half, halves - 1);
    }
    return score_whole<kind, stats, R>(g, key, seen);
  }

  // score_tile() of whole tiles. The general one is long: it is compiled once and called.
  template <Tile kind, bool stats, int R>
  FOVEA_INLINE int score_whole(int g, int64_t key, const Lanes (*seen)[2]) {
    if constexpr (kind == Tile::general)
      return score_general<stats, R>(g, key, seen);
    else
      return score_tile<kind, stats, R, 2>(g, key, seen);
  }
  template <bool stats, int R>
  [[gnu::noinline]] int score_general(int g, int64_t key, const Lanes (*seen)[2]) {
    return score_tile<Tile::general, stats, R, 2>(g, key, seen);
  }

  // Which halves of a tile are seen (bits 0 and 1); if only one is, it goes to `half`.
  template <int R>
  static FOVEA_INLINE int seen_half(const Lanes (&seen)[R][2], Lanes (&half)[R][1]) {
    Lanes low{}, high{};
    for (int r = 0; r < R; ++r) {
      low |= seen[r][0];
      high |= seen[r][1];
    }
    const int halves = (any(low) ? 1 : 0) | (any(high) ? 2 : 0);
    for (int r = 0; halves != 3 && r < R; ++r) half[r][0] = seen[r][halves == 2 ? 1 : 0];
    return halves;
  }

  FOVEA_INLINE int live_halves(int g, int64_t key) const {
    return (mask_.cover(g, key, 0, 1) != Cover::none ? 1 : 0) |
           (mask_.cover(g, key, 1, 2) != Cover::none ? 2 : 0);
  }

  // Returns which halves of the tile (bits 0 and 1) have weights. N vectors of keys from `half` on;
  // all are seen where `seen` is null.
  template <Tile kind, bool stats, int R, int N>
  FOVEA_INLINE int score_tile(int g, int64_t key, const Lanes (*seen)[N], int half = 0) {
    const bool masked = kind == Tile::masked || (kind == Tile::general && seen != nullptr);
    const int first = static_cast<int>(tiles_.first(g));
    [[maybe_unused]] GateTile gate;
    const bool open = gated && find_gate(g, key, gate);  // the gate acts
    Float s[R][N];
    panel_products<P>(s, b_.key_width, q_ + first * b_.key_width.pitch,
                      keys_at(key) + half * kLanes);
    if constexpr (kind == Tile::general || gated) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        if constexpr (kind == Tile::general) {
          to_logits(first + r, key, open && !weighs_ ? gate.value[r] : nullptr, s[r]);
        } else if (open && !weighs_) {
          s[r][0] = s[r][0] * load(gate.value[r]);
          s[r][1] = s[r][1] * load(gate.value[r] + kLanes);
        }
      }
    }
    if (masked && (stats || open_[g] > 0)) hide(s, seen);
    if (open_[g] > 0) take_references(g, s);
    Word* weights = weights_ + first * kWeightPitch<P> + depth_ * (kPanel / P::kElements) +
                    half * (kLanes / P::kElements);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int row = first + r;
      const Float factor = broadcast(factor_[row]), m = broadcast(reference_[row]);
      Float x[N], p[N];
#pragma GCC unroll 2
      for (int v = 0; v < N; ++v) {
        x[v] = s[r][v] * factor - m;
        if (masked)
          p[v] = exp2_seen<P::kExpDegree>(seen[r][v], x[v]);
        else
          p[v] = exp2_lanes<P::kExpDegree>(x[v]);
        if (open && weighs_) {
          p[v] = p[v] * load(gate.value[r] + v * kLanes);
          if (stats) x[v] = x[v] + log2_lanes(load(gate.value[r] + v * kLanes));
        }
      }
      float* const sums = sums_ + row * kLanes;
      if constexpr (N == 1) {
        store(sums, load(sums) + P::row_sums(p[0], Float{}));
        P::store_half(weights + r * kWeightPitch<P>, p[0]);
      } else {
        store(sums, load(sums) + P::row_sums(p[0], p[1]));
        if (stats) observe<kind != Tile::plain>(row, x, p[0], p[1]);
        if (kind == Tile::general) drop(row, key, p[0], p[1]);
        P::store_row(weights + r * kWeightPitch<P>, p[0], p[1]);
      }
    }
    return N == 2 ? 3 : 1 << half;
  }

  // References and telemetry take unseen logits for -inf.
  template <int R, int N>
  static FOVEA_INLINE void hide(Float (&s)[R][N], const Lanes (*seen)[N]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < N; ++v) s[r][v] = choose(seen[r][v], s[r][v], broadcast(-kInfinity));
    }
  }

  // The gate of a tile; false where all its pairs are local.
  [[gnu::noinline]] bool find_gate(int g, int64_t key, GateTile& gate) const {
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

  // From raw products to logits; `gate` multiplies them or is added, null without.
  FOVEA_INLINE void to_logits(int row, int64_t key, const float* gate, Float (&s)[2]) {
    const int real = row < b_.rows ? row : 0;
    const Int position = broadcast(b_.position[real]);
    const Float scale = broadcast(scale_[row]);
    Float slope;
    for (int v = 0; v < 2; ++v) {
      const Int distance = position - load(b_.key_places.position + key + v * kLanes);
      s[v] = capped<P::kExpDegree>(*b_.head[real], s[v] * scale, slope);
      if (gated && gate != nullptr)
        s[v] = adds_ ? s[v] + load(gate + v * kLanes) : s[v] * load(gate + v * kLanes);
      s[v] = biased(*b_.head[real], s[v], distance);
    }
  }

  FOVEA_INLINE void drop(int row, int64_t key, Float& low, Float& high) {
    if (row >= b_.rows || b_.head[row]->dropout <= 0.0f) return;
    alignas(64) float factors[kPanel];
    keep_keys(*b_.head[row], b_.index[row], key, factors);
    low = low * load(factors);
    high = high * load(factors + kLanes);
  }

  // The reference of rows that have none: the largest logit of the first tile in which they see a
  // key.
  template <int R, int N>
  FOVEA_INLINE void take_references(int g, const Float (&s)[R][N]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int64_t row = tiles_.first(g) + r;
      if (!fresh_[row]) continue;
      const float top = largest(larger(s[r][0], s[r][N - 1]) * broadcast(factor_[row]));
      if (!(top > -kInfinity)) continue;
      reference_[row] = top;
      fresh_[row] = false;
      --open_[g];
    }
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
    for (int64_t r = 0; r < padded_; ++r) {
      unsafe_[r] = r < b_.rows && !(total_[r] < kSafeSum);
      if (unsafe_[r]) reference_[r] = -kInfinity;
      found |= unsafe_[r];
    }
    return found;
  }

  // Exact maxima of the unsafe rows. Rare, so it goes the general way for every spec.
  void raise_references(const TileRange& range) {
    for (int64_t key = range.key_begin; key < range.key_end; key += kPanel) {
      for (int g = 0; g < row_tiles_; ++g)
        with_rows(tiles_, g, [&]<int R>(Rows<R>) FOVEA_ALWAYS { raise_tile<R>(g, key); });
    }
  }

  template <int R>
  FOVEA_INLINE void raise_tile(int g, int64_t key) {
    const int first = static_cast<int>(tiles_.first(g));
    Lanes seen[R][2];
    if (!mask_.by_pairs(first, key, seen)) return;
    if constexpr (gated)
      keys_ = {b_.key_gates.first[key / kPanel], b_.key_gates.last[key / kPanel]};
    [[maybe_unused]] GateTile gate;
    const bool open = gated && !weighs_ && find_gate(g, key, gate);
    Float s[R][2];
    panel_products<P>(s, b_.key_width, q_ + first * b_.key_width.pitch, keys_at(key));
    for (int r = 0; r < R; ++r) {
      if (!unsafe_[first + r]) continue;
      to_logits(first + r, key, open ? gate.value[r] : nullptr, s[r]);
      for (int v = 0; v < 2; ++v) {
        const float top = largest(choose(seen[r][v], s[r][v] * kLog2E, broadcast(-kInfinity)));
        if (top > reference_[first + r]) reference_[first + r] = top;
      }
    }
  }

  // O += P V over the panels since the last call.
  void add_values() {
    const int64_t columns = b_.value_width.columns;
    for (int64_t tile = 0; tile < columns; tile += kPanel) {
      const bool wide = columns - tile >= kPanel;
      for (int g = 0; g < row_tiles_; ++g) {
        with_rows(tiles_, g, [&]<int R>(Rows<R>) FOVEA_ALWAYS {
          wide ? add_tile<R, 2>(g, tile) : add_tile<R, 1>(g, tile);
        });
      }
    }
    for (int g = 0; g < row_tiles_; ++g) begun_[g] = true;
    depth_ = 0;
  }

  template <int R, int N>
  FOVEA_INLINE void add_tile(int g, int64_t tile) {
    constexpr int64_t kWords = kPanel / P::kElements;  // words of a panel of P's row; rows of V
    const int64_t columns = b_.value_width.columns, first = tiles_.first(g);
    if constexpr (kPrefetchesSums)
      prefetch_sums<R, N>(out_ + (first + R) * columns + tile, columns);
    add_to_sums<P, N, R>(
        out_ + first * columns + tile, columns, begun_[g], [&](const auto& add) FOVEA_ALWAYS {
          for (int d = 0; d < depth_; ++d) {
            const Word* const weights = weights_ + first * kWeightPitch<P> + d * kWords;
            const Word* const values = panel_values_[d] + tile * kWords;
            if (live_[d][g] == 3) {
              add(kWords, weights, kWeightPitch<P>, 1, values);
            } else if (live_[d][g] != 0) {
              const int64_t from = live_[d][g] == 2 ? kWords / 2 : 0;
              add(kWords / 2, weights + from, kWeightPitch<P>, 1, values + from * N * kLanes);
            }
          }
        });
  }

  // out = O / l, lse = m + log l; the sink is one more key with value 0 (spec 7.5).
  void write() {
    alignas(64) float inverse[kQueryBlock], lse[kQueryBlock];
    const int64_t rows = b_.rows;
    if (!finite_lanes(out_, rows * b_.value_width.columns)) note_not_finite(b_.not_finite);
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
      if (b_.rest[r] != nullptr) write_rest(from, inverse[r], to, b_.rest[r]);
      if (b_.lse[r] != nullptr) *b_.lse[r] = lse[r];
      if (b_.stats[r] != nullptr) write_stats(r, inverse[r], lse[r]);
    }
  }

  FOVEA_INLINE void write_rest(const float* from, float inverse, const T* out, T* rest) const {
    for (int64_t c = 0; c < b_.value_width.elements; ++c)
      from_float(from[c] * inverse - to_float(out[c]), rest[c]);
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
  const RowTiles<kTall> tiles_;
  const int row_tiles_ = tiles_.count();
  const int64_t padded_ = tiles_.first(row_tiles_);  // rows of all tiles
  const TileMask<T, kTall> mask_;
  float *q_, *weights_, *out_, *sums_;  // sums_: kLanes partial sums a row
  float *spread_, *top_, *first_;       // the same, for telemetry
  Int start_[2];
  bool has_start_ = false, compared_ = false;
  int depth_ = 0;
  const Word* panel_values_[kDepth];
  int live_[kDepth][kMostTiles];  // which halves of the panel's tile have weights
  int open_[kMostTiles];          // rows of the tile without reference
  bool begun_[kMostTiles];        // its rows of out_ hold sums
  bool fresh_[kQueryBlock], unsafe_[kQueryBlock];
  RowPrefetch<T> prefetch_{b_};
  const bool far_ = (b_.wrap < 0 ? b_.key_count : b_.wrap + 1) *
                        (b_.key_width.pitch + b_.value_width.columns / P::kElements) >
                    kNearWords;  // keys and values do not fit the second-level cache
  bool weighs_ = false;          // the gate multiplies weights, not logits
  bool adds_ = false;            // it is added to logits
  Extent keys_, extent_[kMostTiles];
  alignas(64) float gates_[gated ? kQueryBlock * (kMostGateColumns + 3) : 1];
  alignas(64) float reference_[kQueryBlock], total_[kQueryBlock];
  alignas(64) float scale_[kQueryBlock], factor_[kQueryBlock];  // of raw products; to log 2 units
};

template <class T, class P, bool gated = false>
void forward_block(const ForwardBlock<T>& block, float* scratch) {
  const FlushDenormals flush;
  [[maybe_unused]] const TileUse tiles;
  ForwardRows<T, P, gated>(block, scratch).run();
}

}  // namespace
}  // namespace fovea::kernels
