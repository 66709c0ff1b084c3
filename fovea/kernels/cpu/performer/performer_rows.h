// The chunks of performer.h, written once and compiled once per instruction set (kernel_table.h
// says why everything here has internal linkage).
//
// Features lie feature by feature, F [m, C], so that tokens are the lanes: maxima, exponentials and
// sums over features need no reduction inside a vector. Pairs lie key by key, P [j, i].
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/vector_math.h"
#include "fovea/kernels/cpu/arena.h"
#include "fovea/kernels/cpu/kernel_table.h"
#include "fovea/kernels/cpu/performer/performer.h"
#include "fovea/kernels/cpu/performer/performer_product.h"

namespace fovea::kernels {
namespace {

constexpr float kNoKey = -__builtin_inff();
// Padding beyond whole vectors keeps the rows of one column apart in the sets of a cache.
constexpr int64_t kChunkRow = kPerformerChunk + kPerformerLanes;

// The sizes of a chunk, and of rows of scratch.
struct ChunkShape {
  int64_t m = 0, d = 0, e = 0, n = 0;  // n tokens
  int64_t columns = 0;                 // n, padded
  int64_t d_row = 0, e_row = 0;
  int64_t e_columns = 0, d_columns = 0;
};

ChunkShape shape_of(const PerformerInputs& in) {
  ChunkShape s;
  s.m = in.features, s.d = in.key_width, s.e = in.value_width;
  s.d_columns = padded_lanes(s.d), s.e_columns = padded_lanes(s.e);
  s.d_row = s.d_columns + kPerformerLanes, s.e_row = performer_state_width(s.e);
  return s;
}

void set_tokens(ChunkShape& s, int64_t n) {
  s.n = n;
  s.columns = padded_lanes(n);
}

// One number for each token of a chunk.
float* allocate_tokens(Arena& arena) { return arena.allocate(kChunkRow); }

// S [m, e_row] with z and R in its padding (performer_state_width()).
struct State {
  float* data = nullptr;
  int64_t row = 0, z_column = 0;

  float& z(int64_t r) const { return data[r * row + z_column]; }
  float& largest() const { return data[z_column + 1]; }
  float& has_keys() const { return data[z_column + 2]; }
  RightFactor sums() const { return {data, row}; }
};

State state_at(float* data, const ChunkShape& s) { return {data, s.e_row, s.e_columns}; }

void clear(const State& state, const ChunkShape& s) {
  for (int64_t n = 0; n < s.m * state.row; ++n) state.data[n] = 0.0f;
  state.largest() = kNoKey;
}

// Queries or keys of a chunk, of one head.
struct FeatureRows {
  float* x = nullptr;         // x' [d, C]
  float* features = nullptr;  // exp(w . x' - top) [m, C]
  float* exponent = nullptr;  // top - |x'|^2 / 2, of each token
  float* top = nullptr;       // largest w . x'
  float* factor = nullptr;    // x' = factor x, of each token

  FeatureRows(Arena& arena, const ChunkShape& s)
      : x(arena.allocate(s.d * kChunkRow)),
        features(arena.allocate(s.m * kChunkRow)),
        exponent(allocate_tokens(arena)),
        top(allocate_tokens(arena)),
        factor(allocate_tokens(arena)) {}
};

// x^T [width, C] of rows, times a factor of each token; columns behind the last token are 0.
void load_transposed(const float* rows, int64_t stride, const ChunkShape& s, int64_t width,
                     const float* factor, float* to) {
  for (int64_t i = 0; i < s.n; ++i) {
    const float* const row = rows + i * stride;
    const float by = factor == nullptr ? 1.0f : factor[i];
    for (int64_t c = 0; c < width; ++c) to[c * kChunkRow + i] = row[c] * by;
  }
  for (int64_t c = 0; c < width; ++c)
    for (int64_t i = s.n; i < s.columns; ++i) to[c * kChunkRow + i] = 0.0f;
}

// Rows [n, width], padded with zeros.
void load_rows(const float* rows, int64_t stride, int64_t n, int64_t width, int64_t columns,
               float* to, int64_t to_row) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < width; ++c) to[i * to_row + c] = rows[i * stride + c];
    for (int64_t c = width; c < columns; ++c) to[i * to_row + c] = 0.0f;
  }
}

void make_features(const float* directions, const ChunkShape& s, const FeatureRows& f) {
  product(s.m, s.columns, {directions, s.d, 1}, {f.x, kChunkRow}, {f.features, kChunkRow},
          all_terms(s.d));
  float* __restrict const top = f.top;
  float* __restrict const squares = f.exponent;
  for (int64_t i = 0; i < s.columns; ++i) {
    top[i] = f.features[i];
    squares[i] = 0.0f;
  }
  for (int64_t c = 0; c < s.d; ++c) {
    const float* __restrict const x = f.x + c * kChunkRow;
#pragma omp simd
    for (int64_t i = 0; i < s.columns; ++i) squares[i] += x[i] * x[i];
  }
  for (int64_t r = 1; r < s.m; ++r) {
    const float* __restrict const x = f.features + r * kChunkRow;
#pragma omp simd
    for (int64_t i = 0; i < s.columns; ++i) top[i] = x[i] > top[i] ? x[i] : top[i];
  }
  for (int64_t r = 0; r < s.m; ++r) {
    float* __restrict const x = f.features + r * kChunkRow;
#pragma omp simd
    for (int64_t i = 0; i < s.columns; ++i) x[i] = fast_exp(x[i] - top[i]);
  }
  for (int64_t i = 0; i < s.columns; ++i) f.exponent[i] = top[i] - 0.5f * squares[i];
}

void load_keys(const PerformerInputs& in, int64_t b, int64_t g, int64_t begin, const ChunkShape& s,
               const FeatureRows& keys) {
  for (int64_t i = 0; i < s.n; ++i) keys.factor[i] = in.key_factor;
  load_transposed(in.k.at(b, g, begin), in.k.row, s, s.d, keys.factor, keys.x);
  make_features(in.directions, s, keys);
}

void load_queries(const PerformerInputs& in, int64_t b, int64_t h, int64_t begin,
                  const ChunkShape& s, const FeatureRows& queries) {
  for (int64_t i = 0; i < s.n; ++i)
    queries.factor[i] =
        in.tau == nullptr ? in.query_factor : in.query_factor / in.tau[b * in.tokens + begin + i];
  load_transposed(in.q.at(b, h, begin), in.q.row, s, s.d, queries.factor, queries.x);
  make_features(in.directions, s, queries);
}

// How exponents of the keys of a chunk and of the state before it are rescaled, so that row i
// depends on no later key.
struct Scales {
  float* largest = nullptr;  // of each query: R of the keys up to it
  float* carried = nullptr;  // e^(R before the chunk - largest)
  float* last = nullptr;     // of each key: e^(its exponent - R after the chunk)
  float* pairs = nullptr;    // e^(exponent of key j - largest_i), 0 before the key: [C, C]
  float kept = 0.0f;         // e^(R before - R after)

  Scales(Arena& arena)
      : largest(allocate_tokens(arena)),
        carried(allocate_tokens(arena)),
        last(allocate_tokens(arena)),
        pairs(arena.allocate(kPerformerChunk * kChunkRow)) {}

  void set(const ChunkShape& s, const FeatureRows& keys, float before) {
    float now = before;
    for (int64_t i = 0; i < s.columns; ++i) {
      if (i < s.n && !(keys.exponent[i] <= now)) now = keys.exponent[i];
      largest[i] = now;
      carried[i] = fast_exp(before - now);
    }
    kept = fast_exp(before - now);
    for (int64_t j = 0; j < s.n; ++j) {
      const float exponent = keys.exponent[j];
      last[j] = fast_exp(exponent - now);
      float* __restrict const row = pairs + j * kChunkRow;
#pragma omp simd
      for (int64_t i = 0; i < s.columns; ++i)
        row[i] = i < j ? 0.0f : fast_exp(exponent - largest[i]);
    }
  }
};

// Scratch of the forward pass of a chunk.
struct ForwardScratch {
  FeatureRows keys, queries;
  Scales scales;
  float *values, *scaled, *pairs, *sums, *total, *state;

  ForwardScratch(Arena& arena, const ChunkShape& s)
      : keys(arena, s),
        queries(arena, s),
        scales(arena),
        values(arena.allocate(kPerformerChunk * s.e_row)),
        scaled(arena.allocate(kPerformerChunk * s.e_row)),
        pairs(arena.allocate(kPerformerChunk * kChunkRow)),
        sums(arena.allocate(kPerformerChunk * s.e_row)),
        total(allocate_tokens(arena)),
        state(arena.allocate(s.m * s.e_row)) {}
};

// Weights of pairs [j, i] before their rows are divided by the totals, 0 before the key; adds them
// to the totals.
void weigh_pairs(const ChunkShape& s, const FeatureRows& keys, const FeatureRows& queries,
                 const Scales& scales, float* pairs, float* __restrict total) {
  product(s.n, s.columns, {keys.features, 1, kChunkRow}, {queries.features, kChunkRow},
          {pairs, kChunkRow}, [&](int64_t j, int64_t, int64_t i, int64_t columns) {
            return Terms{0, i + columns > j ? s.m : 0};
          });
  for (int64_t j = 0; j < s.n; ++j) {
    float* __restrict const row = pairs + j * kChunkRow;
    const float* __restrict const scale = scales.pairs + j * kChunkRow;
#pragma omp simd
    for (int64_t i = 0; i < s.columns; ++i) {
      const float weight = i < j ? 0.0f : row[i] * scale[i];
      row[i] = weight;
      total[i] += weight;
    }
  }
}

// total_i = carried_i phi(q_i) . z
void carry_totals(const ChunkShape& s, const FeatureRows& queries, const Scales& scales,
                  const State& state, float* __restrict total) {
  for (int64_t i = 0; i < s.columns; ++i) total[i] = 0.0f;
  for (int64_t r = 0; r < s.m; ++r) {
    const float z = state.z(r);
    const float* __restrict const f = queries.features + r * kChunkRow;
#pragma omp simd
    for (int64_t i = 0; i < s.columns; ++i) total[i] += f[i] * z;
  }
  for (int64_t i = 0; i < s.columns; ++i) total[i] *= scales.carried[i];
}

// Row i of a product needs keys j <= i.
FOVEA_INLINE auto earlier_keys(int64_t n) {
  return [n](int64_t i, int64_t rows, int64_t, int64_t) {
    return Terms{0, i + rows < n ? i + rows : n};
  };
}

void attend(const PerformerForward& p, const PerformerUnit& u, int64_t h,
            const PerformerChunk& chunk, bool carries, const ChunkShape& s, const ForwardScratch& x,
            const State& state) {
  load_queries(p.in, u.b, h, chunk.begin, s, x.queries);
  for (int64_t i = 0; i < s.columns; ++i) x.total[i] = 0.0f;
  if (carries) {
    carry_totals(s, x.queries, x.scales, state, x.total);
    product(s.n, s.e_columns, {x.queries.features, 1, kChunkRow}, state.sums(), {x.sums, s.e_row},
            all_terms(s.m));
    for (int64_t i = 0; i < s.n; ++i)
      for (int64_t c = 0; c < s.e_columns; ++c) x.sums[i * s.e_row + c] *= x.scales.carried[i];
  }
  weigh_pairs(s, x.keys, x.queries, x.scales, x.pairs, x.total);
  product(s.n, s.e_columns, {x.pairs, 1, kChunkRow}, {x.values, s.e_row},
          {x.sums, s.e_row, carries}, earlier_keys(s.n));
  const float features = __builtin_logf(static_cast<float>(s.m));
  float* const lse =
      p.lse == nullptr ? nullptr : p.lse + (u.b * p.in.heads + h) * p.in.tokens + chunk.begin;
  for (int64_t i = 0; i < s.n; ++i) {
    float* const out = p.out.at(u.b, h, chunk.begin + i);
    const float by = x.total[i] == 0.0f ? 0.0f : 1.0f / x.total[i];
    for (int64_t c = 0; c < s.e; ++c) out[c] = x.sums[i * s.e_row + c] * by;
    if (lse != nullptr)
      lse[i] = __builtin_logf(x.total[i]) + x.queries.exponent[i] + x.scales.largest[i] - features;
  }
}

// Keys of a chunk join the state.
void advance(const ChunkShape& s, const ForwardScratch& x, const State& state) {
  for (int64_t j = 0; j < s.n; ++j)
    for (int64_t c = 0; c < s.e_columns; ++c)
      x.scaled[j * s.e_row + c] = x.scales.last[j] * x.values[j * s.e_row + c];
  for (int64_t r = 0; r < s.m; ++r) {
    float* __restrict const row = state.data + r * state.row;
    const float* __restrict const f = x.keys.features + r * kChunkRow;
    const float* __restrict const last = x.scales.last;
    float z = 0.0f;
#pragma omp simd reduction(+ : z)
    for (int64_t j = 0; j < s.n; ++j) z += f[j] * last[j];
    for (int64_t c = 0; c < s.e_columns; ++c) row[c] *= x.scales.kept;
    state.z(r) = state.z(r) * x.scales.kept + z;
  }
  product(s.m, s.e_columns, {x.keys.features, kChunkRow, 1}, {x.scaled, s.e_row},
          {state.data, state.row, true}, all_terms(s.n));
  state.largest() = x.scales.largest[s.n - 1];
  state.has_keys() = 1.0f;
}

void forward(const PerformerForward& p, const PerformerUnit& u) {
  ChunkShape s = shape_of(p.in);
  Arena arena(u.scratch);
  const ForwardScratch fixed(arena, s);
  ForwardScratch x = fixed;
  const int64_t size = s.m * s.e_row, repeats = p.in.heads / p.in.kv_heads;
  const State state =
      state_at(p.running == nullptr ? x.state : p.running + (u.b * p.in.kv_heads + u.g) * size, s);
  for (int64_t n = 0; n < u.count; ++n) {
    const PerformerChunk& chunk = u.chunks[n];
    const bool carries = !chunk.starts || (n == 0 && p.running != nullptr);
    if (!carries || state.has_keys() == 0.0f) clear(state, s);
    set_tokens(s, chunk.end - chunk.begin);
    if (p.states != nullptr && carries)
      __builtin_memcpy(p.states + u.first_state + n * size, state.data,
                       static_cast<size_t>(size) * sizeof(float));
    load_keys(p.in, u.b, u.g, chunk.begin, s, x.keys);
    x.scales.set(s, x.keys, state.largest());
    load_rows(p.in.v.at(u.b, u.g, chunk.begin), p.in.v.row, s.n, s.e, s.e_columns, x.values,
              s.e_row);
    for (int64_t h = u.g * repeats; h < (u.g + 1) * repeats; ++h)
      attend(p, u, h, chunk, carries, s, x, state);
    const bool goes_on = n + 1 < u.count ? !u.chunks[n + 1].starts : p.running != nullptr;
    if (goes_on) advance(s, x, state);
  }
}

// Memory of the backward pass of a chunk, beside that of the forward pass.
struct BackwardScratch {
  float* directions;         // w [m, d_row]
  float *dout, *dout_t;      // gradients of the sums: [C, e], [e, C]
  float* dtotal;             // of the totals
  float *dpairs, *dpairs_t;  // [j, i], [i, j]
  float *dqueries, *dkeys;   // of the features [m, C]
  float *dvalues, *part;     // [C, e]
  float* values_t;           // [e, C]
  float* dx;                 // of x' [C, d]
  float* row_sums;
  float *dstate, *collected;  // of the state after the chunk, and before it

  BackwardScratch(Arena& arena, const ChunkShape& s)
      : directions(arena.allocate(s.m * s.d_row)),
        dout(arena.allocate(kPerformerChunk * s.e_row)),
        dout_t(arena.allocate(s.e * kChunkRow)),
        dtotal(allocate_tokens(arena)),
        dpairs(arena.allocate(kPerformerChunk * kChunkRow)),
        dpairs_t(arena.allocate(kPerformerChunk * kChunkRow)),
        dqueries(arena.allocate(s.m * kChunkRow)),
        dkeys(arena.allocate(s.m * kChunkRow)),
        dvalues(arena.allocate(kPerformerChunk * s.e_row)),
        part(arena.allocate(kPerformerChunk * s.e_row)),
        values_t(arena.allocate(s.e * kChunkRow)),
        dx(arena.allocate(kPerformerChunk * s.d_row)),
        row_sums(allocate_tokens(arena)),
        dstate(arena.allocate(s.m * s.e_row)),
        collected(arena.allocate(s.m * s.e_row)) {}
};

// Gradients of x [n, d] from those of the features, which become those of the exponents:
//   dx' = sum_r (df_r f_r) w_r - (sum_r df_r f_r) x'
// Returns them in y.dx, without the tokens' factors.
void to_inputs(const ChunkShape& s, const FeatureRows& f, float* dfeatures,
               const BackwardScratch& y) {
  float* __restrict const sums = y.row_sums;
  for (int64_t i = 0; i < s.columns; ++i) sums[i] = 0.0f;
  for (int64_t r = 0; r < s.m; ++r) {
    float* __restrict const df = dfeatures + r * kChunkRow;
    const float* __restrict const value = f.features + r * kChunkRow;
#pragma omp simd
    for (int64_t i = 0; i < s.columns; ++i) {
      df[i] *= value[i];
      sums[i] += df[i];
    }
  }
  product(s.n, s.d_columns, {dfeatures, 1, kChunkRow}, {y.directions, s.d_row}, {y.dx, s.d_row},
          all_terms(s.m));
  for (int64_t i = 0; i < s.n; ++i)
    for (int64_t c = 0; c < s.d; ++c) y.dx[i * s.d_row + c] -= sums[i] * f.x[c * kChunkRow + i];
}

// Gradients of sums and totals from those of outputs and lse.
void load_gradients(const PerformerBackward& p, const PerformerUnit& u, int64_t h, int64_t begin,
                    const ChunkShape& s, const float* total, const BackwardScratch& y) {
  const float* const dlse =
      p.dlse == nullptr ? nullptr : p.dlse + (u.b * p.in.heads + h) * p.in.tokens + begin;
  for (int64_t i = 0; i < s.columns; ++i) y.dtotal[i] = 0.0f;
  for (int64_t i = 0; i < s.n; ++i) {
    const float* __restrict const out = p.out.at(u.b, h, begin + i);
    const float* __restrict const dout = p.dout.at(u.b, h, begin + i);
    float* __restrict const to = y.dout + i * s.e_row;
    const float by = total[i] == 0.0f ? 0.0f : 1.0f / total[i];
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < s.e; ++c) {
      dot += dout[c] * out[c];
      to[c] = dout[c] * by;
    }
    for (int64_t c = s.e; c < s.e_columns; ++c) to[c] = 0.0f;
    y.dtotal[i] = ((dlse == nullptr ? 0.0f : dlse[i]) - dot) * by;
  }
  load_transposed(y.dout, s.e_row, s, s.e, nullptr, y.dout_t);
}

// Gradients of the pairs' products, [j, i] and [i, j].
void pair_gradients(const ChunkShape& s, const float* values, const Scales& scales,
                    const BackwardScratch& y) {
  product(s.n, s.columns, {values, s.e_row, 1}, {y.dout_t, kChunkRow}, {y.dpairs, kChunkRow},
          [&](int64_t j, int64_t, int64_t i, int64_t columns) {
            return Terms{0, i + columns > j ? s.e : 0};
          });
  for (int64_t j = 0; j < s.n; ++j) {
    float* __restrict const row = y.dpairs + j * kChunkRow;
    const float* __restrict const scale = scales.pairs + j * kChunkRow;
#pragma omp simd
    for (int64_t i = 0; i < s.columns; ++i)
      row[i] = i < j ? 0.0f : (row[i] + y.dtotal[i]) * scale[i];
  }
  load_transposed(y.dpairs, kChunkRow, s, s.columns, nullptr, y.dpairs_t);
}

// dF_q = carried (S dout^T + z dtotal) + F_k dP
void query_feature_gradients(const ChunkShape& s, bool carries, const State& state,
                             const ForwardScratch& x, const BackwardScratch& y) {
  if (carries) {
    product(s.m, s.columns, {state.data, state.row, 1}, {y.dout_t, kChunkRow},
            {y.dqueries, kChunkRow}, all_terms(s.e));
    for (int64_t r = 0; r < s.m; ++r) {
      const float z = state.z(r);
      float* __restrict const row = y.dqueries + r * kChunkRow;
      const float* __restrict const carried = x.scales.carried;
#pragma omp simd
      for (int64_t i = 0; i < s.columns; ++i) row[i] = (row[i] + z * y.dtotal[i]) * carried[i];
    }
  }
  product(s.m, s.columns, {x.keys.features, kChunkRow, 1}, {y.dpairs, kChunkRow},
          {y.dqueries, kChunkRow, carries}, [&](int64_t, int64_t, int64_t i, int64_t columns) {
            return Terms{0, i + columns < s.n ? i + columns : s.n};
          });
}

// dF_k += F_q dP^T, dV += P dout: of the pairs of one query head.
void add_key_gradients(const ChunkShape& s, bool first, const ForwardScratch& x,
                       const BackwardScratch& y) {
  product(s.m, s.columns, {x.queries.features, kChunkRow, 1}, {y.dpairs_t, kChunkRow},
          {y.dkeys, kChunkRow, !first}, [&](int64_t, int64_t, int64_t j, int64_t) {
            return Terms{j < s.n ? j : 0, s.n};
          });
  product(s.n, s.e_columns, {x.pairs, kChunkRow, 1}, {y.dout, s.e_row},
          {y.dvalues, s.e_row, !first}, [&](int64_t j, int64_t, int64_t, int64_t) {
            return Terms{j, s.n};
          });
}

// Gradients of the state before the chunk, from one query head.
void collect_state_gradients(const ChunkShape& s, bool first, const ForwardScratch& x,
                             const BackwardScratch& y) {
  const State collected = state_at(y.collected, s);
  for (int64_t i = 0; i < s.n; ++i)
    for (int64_t c = 0; c < s.e_columns; ++c) y.dout[i * s.e_row + c] *= x.scales.carried[i];
  product(s.m, s.e_columns, {x.queries.features, kChunkRow, 1}, {y.dout, s.e_row},
          {collected.data, collected.row, !first}, all_terms(s.n));
  for (int64_t r = 0; r < s.m; ++r) {
    const float* __restrict const f = x.queries.features + r * kChunkRow;
    float z = 0.0f;
#pragma omp simd reduction(+ : z)
    for (int64_t i = 0; i < s.n; ++i) z += f[i] * x.scales.carried[i] * y.dtotal[i];
    collected.z(r) = z + (first ? 0.0f : collected.z(r));
  }
}

// Gradients of this chunk's keys and values from later chunks.
void add_from_later(const ChunkShape& s, const ForwardScratch& x, const BackwardScratch& y) {
  const State later = state_at(y.dstate, s);
  load_transposed(x.values, s.e_row, s, s.e, nullptr, y.values_t);
  product(s.m, s.columns, {later.data, later.row, 1}, {y.values_t, kChunkRow},
          {y.dqueries, kChunkRow}, all_terms(s.e));
  for (int64_t r = 0; r < s.m; ++r) {
    const float z = later.z(r);
    const float* __restrict const row = y.dqueries + r * kChunkRow;
    const float* __restrict const last = x.scales.last;
    float* __restrict const to = y.dkeys + r * kChunkRow;
#pragma omp simd
    for (int64_t j = 0; j < s.n; ++j) to[j] += (row[j] + z) * last[j];
  }
  product(s.n, s.e_columns, {x.keys.features, 1, kChunkRow}, later.sums(), {y.part, s.e_row},
          all_terms(s.m));
  for (int64_t j = 0; j < s.n; ++j)
    for (int64_t c = 0; c < s.e; ++c)
      y.dvalues[j * s.e_row + c] += x.scales.last[j] * y.part[j * s.e_row + c];
}

void head_backward(const PerformerBackward& p, const PerformerUnit& u, int64_t h,
                   const PerformerChunk& chunk, const ChunkShape& s, const State& state,
                   const ForwardScratch& x, const BackwardScratch& y) {
  const bool carries = !chunk.starts, first = h % (p.in.heads / p.in.kv_heads) == 0;
  load_queries(p.in, u.b, h, chunk.begin, s, x.queries);
  for (int64_t i = 0; i < s.columns; ++i) x.total[i] = 0.0f;
  if (carries) carry_totals(s, x.queries, x.scales, state, x.total);
  weigh_pairs(s, x.keys, x.queries, x.scales, x.pairs, x.total);
  load_gradients(p, u, h, chunk.begin, s, x.total, y);
  pair_gradients(s, x.values, x.scales, y);
  query_feature_gradients(s, carries, state, x, y);
  add_key_gradients(s, first, x, y);
  if (carries) collect_state_gradients(s, first, x, y);
  to_inputs(s, x.queries, y.dqueries, y);
  float* const dtau =
      p.dtau == nullptr ? nullptr : p.dtau + (u.b * p.in.heads + h) * p.in.tokens + chunk.begin;
  for (int64_t i = 0; i < s.n; ++i) {
    float* const dq = p.dq.at(u.b, h, chunk.begin + i);
    const float* const dx = y.dx + i * s.d_row;
    float dot = 0.0f;
    for (int64_t c = 0; c < s.d; ++c) {
      dq[c] = dx[c] * x.queries.factor[i];
      dot += dx[c] * x.queries.x[c * kChunkRow + i];
    }
    if (dtau != nullptr) dtau[i] = -dot / p.in.tau[u.b * p.in.tokens + chunk.begin + i];
  }
}

// The gradient of the state before the chunk, from that after it.
void step_back(const ChunkShape& s, bool goes_on, float kept, const BackwardScratch& y) {
  const int64_t size = s.m * s.e_row;
  float* __restrict const to = y.dstate;
  const float* __restrict const collected = y.collected;
  const float by = goes_on ? kept : 0.0f;
#pragma omp simd
  for (int64_t n = 0; n < size; ++n) to[n] = collected[n] + (goes_on ? by * to[n] : 0.0f);
}

void chunk_backward(const PerformerBackward& p, const PerformerUnit& u, int64_t n,
                    const ChunkShape& s, ForwardScratch& x, const BackwardScratch& y) {
  const PerformerChunk& chunk = u.chunks[n];
  const int64_t size = s.m * s.e_row, repeats = p.in.heads / p.in.kv_heads;
  const bool goes_on = n + 1 < u.count && !u.chunks[n + 1].starts;
  const State state = state_at(const_cast<float*>(p.states) + u.first_state + n * size, s);
  load_keys(p.in, u.b, u.g, chunk.begin, s, x.keys);
  x.scales.set(s, x.keys, chunk.starts ? kNoKey : state.largest());
  load_rows(p.in.v.at(u.b, u.g, chunk.begin), p.in.v.row, s.n, s.e, s.e_columns, x.values, s.e_row);
  for (int64_t h = u.g * repeats; h < (u.g + 1) * repeats; ++h)
    head_backward(p, u, h, chunk, s, state, x, y);
  if (goes_on) add_from_later(s, x, y);
  if (!chunk.starts) step_back(s, goes_on, x.scales.kept, y);
  to_inputs(s, x.keys, y.dkeys, y);
  for (int64_t j = 0; j < s.n; ++j) {
    float* const dk = p.dk.at(u.b, u.g, chunk.begin + j);
    float* const dv = p.dv.at(u.b, u.g, chunk.begin + j);
    for (int64_t c = 0; c < s.d; ++c) dk[c] = y.dx[j * s.d_row + c] * p.in.key_factor;
    for (int64_t c = 0; c < s.e; ++c) dv[c] = y.dvalues[j * s.e_row + c];
  }
}

void backward(const PerformerBackward& p, const PerformerUnit& u) {
  ChunkShape s = shape_of(p.in);
  Arena arena(u.scratch);
  ForwardScratch x(arena, s);
  const BackwardScratch y(arena, s);
  load_rows(p.in.directions, s.d, s.m, s.d, s.d_columns, y.directions, s.d_row);
  for (int64_t n = u.count - 1; n >= 0; --n) {
    set_tokens(s, u.chunks[n].end - u.chunks[n].begin);
    chunk_backward(p, u, n, s, x, y);
  }
}

int64_t scratch_floats(const PerformerInputs& in) {
  const ChunkShape s = shape_of(in);
  Arena arena(nullptr);
  const ForwardScratch x(arena, s);
  const BackwardScratch y(arena, s);
  return arena.used();
}

template <Isa isa>
constexpr PerformerTable table_of() {
  return {forward, backward, scratch_floats};
}

}  // namespace
}  // namespace fovea::kernels
