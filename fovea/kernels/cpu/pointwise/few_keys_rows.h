// The loops of few_keys.h, written once and compiled once per instruction set (kernel_table.h).
//
// As many rows as a vector has lanes go together. Products run along the components, a sum a row;
// from then on a lane is a row: logits, weights and totals of all of them are one vector a key.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/vector_math.h"
#include "fovea/kernels/cpu/kernel_table.h"
#include "fovea/kernels/cpu/pointwise/few_keys.h"
#include "fovea/kernels/cpu/simd/lanes.h"

namespace fovea::kernels {
namespace {

static_assert(kFewRows % kLanes == 0);

constexpr uint32_t kAllRows = (1u << kLanes) - 1u;

// Rows of a block in floats, filled up with zeros to whole vectors.
template <class T>
FOVEA_INLINE void widen(const T* from, int64_t width, int64_t pitch, float* to) {
  const T* __restrict x = from;
  float* __restrict y = to;
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) y[c] = to_float(x[c]);
  for (int64_t c = width; c < pitch; ++c) y[c] = 0.0f;
}

template <class T>
FOVEA_INLINE void narrow(const float* from, int64_t width, T* to) {
  const float* __restrict x = from;
  T* __restrict y = to;
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) from_float(x[c], y[c]);
}

template <class T>
FOVEA_INLINE void widen_block(const T* rows, int64_t row, int64_t count, int64_t width,
                              int64_t pitch, float* to) {
  for (int64_t i = 0; i < count; ++i) widen(rows + i * row, width, pitch, to + i * pitch);
  for (int64_t i = count * pitch; i < kLanes * pitch; ++i) to[i] = 0.0f;
}

// Rows that are read next: their strides hide them from the hardware's prefetching.
template <class T>
FOVEA_INLINE void fetch_block(const T* rows, int64_t row, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; ++i) {
    const char* const bytes = reinterpret_cast<const char*>(rows + i * row);
    for (int64_t n = 0; n < width * static_cast<int64_t>(sizeof(T)); n += 64)
      __builtin_prefetch(bytes + n, 0, 3);
  }
}

/// Lane i: row i of a block times `with` (one row, or row i where with_pitch is the block's).
FOVEA_INLINE Float row_products(const float* block, int64_t pitch, const float* with,
                                int64_t with_pitch) {
  Float sums[kLanes] = {};
  for (int64_t c = 0; c < pitch; c += kLanes) {
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i)
      sums[i] += load(block + i * pitch + c) * load(with + i * with_pitch + c);
  }
  return sum_each(sums);
}

/// Numbers of a block's rows and the keys, [key][row].
struct FewWeights {
  alignas(64) float weights[kMostFewKeys][kLanes];  ///< e^(logit - reference), 0 where not seen
  alignas(64) float scaled[kMostFewKeys][kLanes];   ///< logits before the soft-cap
  alignas(64) float slopes[kMostFewKeys][kLanes];   ///< d logit / d scaled
  alignas(64) float scale[kLanes];
  uint32_t readers[kMostFewKeys];  ///< bit i: row i sees the key
  uint64_t any = 0, all = 0;       ///< keys that some row, that every row sees

  /// The block's scales; whether some row sees a key. Rows from `count` on see none.
  FOVEA_INLINE bool begin(const uint64_t* seen, int64_t count, float one, const float* tau) {
    any = 0;
    all = count == kLanes ? ~uint64_t{0} : 0;
    for (int64_t i = 0; i < kLanes; ++i)
      scale[i] = tau != nullptr && i < count ? 1.0f / tau[i] : one;
    for (int64_t i = 0; i < count; ++i) any |= seen[i], all &= seen[i];
    return any != 0;
  }

  FOVEA_INLINE uint32_t readers_of(const uint64_t* seen, int64_t count, int32_t n) const {
    if ((all >> n & 1u) != 0) return kAllRows;
    uint32_t who = 0;
    for (int64_t i = 0; i < count; ++i) who |= static_cast<uint32_t>(seen[i] >> n & 1u) << i;
    return who;
  }

  /// Logits, in the place of weights; -inf where a key is not seen.
  FOVEA_INLINE void fill_logits(const float* block, const FewOperand& k, const uint64_t* seen,
                                int64_t count, float cap) {
    const float inverse = cap > 0.0f ? 2.0f / cap : 0.0f;
    for (uint64_t left = any; left != 0; left &= left - 1) {
      const int32_t n = __builtin_ctzll(left);
      const Float x = row_products(block, k.pitch, k.rows + n * k.pitch, 0) * load(scale);
      store(scaled[n], x);
      float* const to = weights[n];
      float* const slope = slopes[n];
      store(to, x);
      store(slope, broadcast(1.0f));
      if (cap > 0.0f) {
        const float* const from = scaled[n];
#pragma omp simd
        for (int64_t i = 0; i < kLanes; ++i) {
          const float tanh = 1.0f - 2.0f / (fast_exp(inverse * from[i]) + 1.0f);
          to[i] = cap * tanh;
          slope[i] = 1.0f - tanh * tanh;
        }
      }
      const uint32_t who = readers[n] = readers_of(seen, count, n);
      if (who == kAllRows) continue;
#pragma omp simd
      for (int64_t i = 0; i < kLanes; ++i)
        to[i] = (who >> static_cast<uint32_t>(i) & 1u) != 0 ? to[i] : -kInfinity;
    }
  }

  /// From logits to e^(logit - reference); their sums.
  FOVEA_INLINE void weigh(const float* reference, float* totals) {
    for (int64_t i = 0; i < kLanes; ++i) totals[i] = 0.0f;
    for (uint64_t left = any; left != 0; left &= left - 1) {
      float* const x = weights[__builtin_ctzll(left)];
#pragma omp simd
      for (int64_t i = 0; i < kLanes; ++i) {
        x[i] = fast_exp(x[i] - reference[i]);
        totals[i] += x[i];
      }
    }
  }
};

/// N vectors of add_keys().
template <int64_t N>
FOVEA_INLINE void add_key_vectors(float* to, float kept, uint64_t seen, const float* factors,
                                  const float* rows, int64_t pitch) {
  Float sums[N];
#pragma GCC unroll 4
  for (int64_t v = 0; v < N; ++v) sums[v] = load(to + v * kLanes) * broadcast(kept);
  for (; seen != 0; seen &= seen - 1) {
    const int32_t n = __builtin_ctzll(seen);
    const Float factor = broadcast(factors[n * kLanes]);
#pragma GCC unroll 4
    for (int64_t v = 0; v < N; ++v) sums[v] += factor * load(rows + n * pitch + v * kLanes);
  }
#pragma GCC unroll 4
  for (int64_t v = 0; v < N; ++v) store(to + v * kLanes, sums[v]);
}

/// to = kept to + sum_n factors[n][0] row n, over the keys of `seen`; whole vectors of `to`.
FOVEA_INLINE void add_keys(float* to, float kept, uint64_t seen, const float* factors,
                           const FewOperand& keys) {
  int64_t c = 0;
  for (; c + 4 * kLanes <= keys.width; c += 4 * kLanes)
    add_key_vectors<4>(to + c, kept, seen, factors, keys.rows + c, keys.pitch);
  for (; c < keys.width; c += kLanes)
    add_key_vectors<1>(to + c, kept, seen, factors, keys.rows + c, keys.pitch);
}

/// A row as floats: where it lies, or in `memory` if it is of another type or no whole vectors.
template <class T>
FOVEA_INLINE float* row_in_floats(T* row, const FewOperand& keys, float* memory) {
  if constexpr (sizeof(T) == sizeof(float))
    if (keys.width % kLanes == 0) return row;
  widen(row, keys.width, keys.pitch, memory);
  return memory;
}

/// To a row in floats, the part of it that rounding took.
template <class T>
FOVEA_INLINE void add_rest(const T* rest, int64_t width, float* row) {
  for (int64_t c = 0; c < width; ++c) row[c] += to_float(rest[c]);
}

template <class T>
void few_join(const FewRows<T>& p) {
  const FlushDenormals flush;
  float* const q = p.memory;
  float* const out = q + kFewRows * p.k.pitch;
  FewWeights w;
  for (int64_t first = 0; first < p.count; first += kLanes) {
    const int64_t rows = p.count - first < kLanes ? p.count - first : kLanes;
    const uint64_t* const seen = p.seen + first;
    const int64_t next = first + kLanes, ahead = p.count - next < kLanes ? p.count - next : kLanes;
    fetch_block(p.q + next * p.q_row, p.q_row, ahead, p.k.width);
    fetch_block(p.out + next * p.out_row, p.out_row, ahead, p.v.width);
    if (!w.begin(seen, rows, p.scale, p.tau != nullptr ? p.tau + first : nullptr)) continue;
    widen_block(p.q + first * p.q_row, p.q_row, rows, p.k.width, p.k.pitch, q);
    w.fill_logits(q, p.k, seen, rows, p.soft_cap);
    alignas(64) float top[kLanes], totals[kLanes], old[kLanes], share[kLanes], lse[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) top[i] = i < rows ? p.lse[first + i] : 0.0f;
    Float most = load(top);
    for (uint64_t left = w.any; left != 0; left &= left - 1)
      most = larger(load(w.weights[__builtin_ctzll(left)]), most);
    // Rows that have seen nothing, now as before.
    for (int64_t i = 0; i < kLanes; ++i) old[i] = top[i];
    store(top, most);
    for (int64_t i = 0; i < kLanes; ++i) top[i] = top[i] == -kInfinity ? 0.0f : top[i];
    w.weigh(top, totals);
#pragma omp simd
    for (int64_t i = 0; i < kLanes; ++i) {
      old[i] = fast_exp(old[i] - top[i]);
      totals[i] += old[i];
      share[i] = 1.0f / totals[i];
      lse[i] = top[i] + fast_log2(totals[i]) * kLn2;
    }
    for (uint64_t left = w.any; left != 0; left &= left - 1) {
      float* const weights = w.weights[__builtin_ctzll(left)];
      store(weights, load(weights) * load(share));
    }
    store(old, load(old) * load(share));
    for (int64_t i = 0; i < rows; ++i) {
      if (seen[i] == 0) continue;
      p.lse[first + i] = lse[i];
      T* const to = p.out + (first + i) * p.out_row;
      T* const rest = p.rest != nullptr ? p.rest + (first + i) * p.rest_row : nullptr;
      float* const sums = row_in_floats(to, p.v, out);
      if (rest != nullptr) add_rest(rest, p.v.width, sums);
      add_keys(sums, old[i], seen[i], &w.weights[0][i], p.v);
      if (sums == out) narrow(out, p.v.width, to);
      for (int64_t c = 0; rest != nullptr && c < p.v.width; ++c)
        from_float(sums[c] - to_float(to[c]), rest[c]);
    }
  }
}

/// 0 in the lanes of rows that do not read a key: what is no number there must not spread.
FOVEA_INLINE void clear_others(uint32_t readers, float* x) {
#pragma omp simd
  for (int64_t i = 0; i < kLanes; ++i)
    x[i] = (readers >> static_cast<uint32_t>(i) & 1u) != 0 ? x[i] : 0.0f;
}

/// to += sum_i factors[i] row i, over the rows of `readers`.
FOVEA_INLINE void add_rows(const float* factors, const float* block, uint32_t readers,
                           int64_t pitch, float* to) {
  for (int64_t c = 0; c < pitch; c += kLanes) {
    if (readers != kAllRows) {
      Float some = load(to + c);
      for (uint32_t left = readers; left != 0; left &= left - 1) {
        const int32_t i = __builtin_ctz(left);
        some += broadcast(factors[i]) * load(block + i * pitch + c);
      }
      store(to + c, some);
      continue;
    }
    Float even = load(to + c), odd{};
#pragma GCC unroll 8
    for (int64_t i = 0; i < kLanes; i += 2) {
      even += broadcast(factors[i]) * load(block + i * pitch + c);
      odd += broadcast(factors[i + 1]) * load(block + (i + 1) * pitch + c);
    }
    store(to + c, even + odd);
  }
}

// Gradients that are written: zeros for rows that read none of the keys.
template <class T>
FOVEA_INLINE void clear_unread(const FewGradientRows<T>& p, int64_t first, int64_t rows) {
  for (int64_t row = first; row < first + rows; ++row) {
    if (p.dtau != nullptr) p.dtau[row] = 0.0f;
    if (p.seen[row] != 0) continue;
    T* const to = p.dq + row * p.dq_row;
    for (int64_t c = 0; c < p.k.width; ++c) from_float(0.0f, to[c]);
  }
}

/// dq of a row += sum_n slopes[n][0] k_n, over the keys that it reads; `memory` holds a row.
template <class T>
FOVEA_INLINE void add_query_gradient(const FewGradientRows<T>& p, int64_t row, uint64_t seen,
                                     const float* slopes, float* memory) {
  if (p.dq_sums != nullptr) return add_keys(p.dq_sums + row * p.dq_row, 1.0f, seen, slopes, p.k);
  T* const to = p.dq + row * p.dq_row;
  const bool adds = p.queries == FewQueries::shared;
  float* const sums = adds ? row_in_floats(to, p.k, memory) : memory;
  for (int64_t c = 0; !adds && c < p.k.pitch; ++c) sums[c] = 0.0f;
  add_keys(sums, 1.0f, seen, slopes, p.k);
  if (sums == memory) narrow(memory, p.k.width, to);
}

// Adds key n to the rows' sums.
FOVEA_INLINE void add_turns(const FewWeights& w, int32_t n, Float of_value,
                            float (&sums)[kTurnSums][kLanes]) {
  const Float p = load(w.weights[n]), turn = p * load(w.slopes[n]) * load(w.scaled[n]);
  const Float addends[kTurnSums] = {turn * of_value, turn, p * of_value, p};
  for (int64_t i = 0; i < kTurnSums; ++i) {
    alignas(64) float x[kLanes];
    store(x, addends[i]);
    clear_others(w.readers[n], x);
    store(sums[i], load(sums[i]) + load(x));
  }
}

template <class T>
void few_gradient(const FewGradientRows<T>& p) {
  const FlushDenormals flush;
  const int64_t key_pitch = p.k.pitch, value_pitch = p.v.pitch;
  float* const q = p.memory;
  float* const dq = q + kFewRows * key_pitch;
  float* const dout = dq + kFewRows * key_pitch;
  float* const out = dout + kFewRows * value_pitch;
  FewWeights w;
  alignas(64) float slopes[kMostFewKeys][kLanes];  // of the products
  for (int64_t first = 0; first < p.count; first += kLanes) {
    const int64_t rows = p.count - first < kLanes ? p.count - first : kLanes;
    const uint64_t* const seen = p.seen + first;
    const int64_t next = first + kLanes, ahead = p.count - next < kLanes ? p.count - next : kLanes;
    fetch_block(p.q + next * p.q_row, p.q_row, ahead, p.k.width);
    if (p.dq_sums == nullptr) fetch_block(p.dq + next * p.dq_row, p.dq_row, ahead, p.k.width);
    fetch_block(p.out + next * p.out_row, p.out_row, ahead, p.v.width);
    fetch_block(p.dout + next * p.dout_row, p.dout_row, ahead, p.v.width);
    if (p.queries == FewQueries::own) clear_unread(p, first, rows);
    if (!w.begin(seen, rows, p.scale, p.tau != nullptr ? p.tau + first : nullptr)) continue;
    widen_block(p.q + first * p.q_row, p.q_row, rows, p.k.width, key_pitch, q);
    widen_block(p.dout + first * p.dout_row, p.dout_row, rows, p.v.width, value_pitch, dout);
    widen_block(p.out + first * p.out_row, p.out_row, rows, p.v.width, value_pitch, out);
    for (int64_t i = 0; p.rest != nullptr && i < rows; ++i)
      add_rest(p.rest + (first + i) * p.rest_row, p.v.width, out + i * value_pitch);
    w.fill_logits(q, p.k, seen, rows, p.soft_cap);
    alignas(64) float lse[kLanes], less[kLanes], totals[kLanes], turn[kLanes] = {},
                                                                 sums[kTurnSums][kLanes] = {};
    store(less, row_products(dout, value_pitch, out, value_pitch));
    for (int64_t i = 0; i < kLanes; ++i) {
      lse[i] = i < rows && seen[i] != 0 ? p.lse[first + i] : 0.0f;
      less[i] -= i < rows && p.dlse != nullptr ? p.dlse[first + i] : 0.0f;
    }
    w.weigh(lse, totals);
    for (uint64_t left = w.any; left != 0; left &= left - 1) {
      const int32_t n = __builtin_ctzll(left);
      const Float of_value = row_products(dout, value_pitch, p.v.rows + n * value_pitch, 0);
      const Float ds = load(w.weights[n]) * (of_value - load(less)) * load(w.slopes[n]);
      if (p.dtau != nullptr) {
        alignas(64) float turned[kLanes];
        store(turned, ds * load(w.scaled[n]));
        clear_others(w.readers[n], turned);
        store(turn, load(turn) + load(turned));
      }
      if (p.turns != nullptr) add_turns(w, n, of_value, sums);
      store(slopes[n], ds * load(w.scale));
      add_rows(slopes[n], q, w.readers[n], key_pitch, p.dk + n * key_pitch);
      add_rows(w.weights[n], dout, w.readers[n], value_pitch, p.dv + n * value_pitch);
    }
    for (int64_t i = 0; i < rows; ++i) {
      if (seen[i] == 0) continue;
      if (p.dtau != nullptr) p.dtau[first + i] -= turn[i] * w.scale[i];  // s = q.k / tau
      for (int64_t n = 0; p.turns != nullptr && n < kTurnSums; ++n)
        p.turns[(first + i) * kTurnSums + n] += sums[n][i];
      add_query_gradient(p, first + i, seen[i], &slopes[0][i], dq);
    }
  }
}

template <class T>
void few_queries_gradient(const FewQueriesRows<T>& p) {
  const FlushDenormals flush;
  const int64_t key_pitch = p.q.pitch, value_pitch = p.dout.pitch;
  float* const k = p.memory;
  float* const dk = k + kFewRows * key_pitch;
  float* const v = dk + kFewRows * key_pitch;
  float* const dv = v + kFewRows * value_pitch;
  FewWeights w;
  for (int64_t first = 0; first < p.count; first += kLanes) {
    const int64_t rows = p.count - first < kLanes ? p.count - first : kLanes;
    const uint64_t* const seen = p.seen + first;
    const int64_t next = first + kLanes, ahead = p.count - next < kLanes ? p.count - next : kLanes;
    fetch_block(p.k + next * p.k_row, p.k_row, ahead, p.q.width);
    fetch_block(p.v + next * p.v_row, p.v_row, ahead, p.dout.width);
    if (p.add_to_keys) {
      fetch_block(p.dk + next * p.dk_row, p.dk_row, ahead, p.q.width);
      fetch_block(p.dv + next * p.dv_row, p.dv_row, ahead, p.dout.width);
    }
    const bool read = w.begin(seen, rows, 1.0f, nullptr);
    if (p.add_to_keys) {
      if (!read) continue;
      widen_block(p.dk + first * p.dk_row, p.dk_row, rows, p.q.width, key_pitch, dk);
      widen_block(p.dv + first * p.dv_row, p.dv_row, rows, p.dout.width, value_pitch, dv);
    } else {
      for (int64_t n = 0; n < kLanes * key_pitch; ++n) dk[n] = 0.0f;
      for (int64_t n = 0; n < kLanes * value_pitch; ++n) dv[n] = 0.0f;
    }
    if (read) {
      widen_block(p.k + first * p.k_row, p.k_row, rows, p.q.width, key_pitch, k);
      widen_block(p.v + first * p.v_row, p.v_row, rows, p.dout.width, value_pitch, v);
      w.fill_logits(k, p.q, seen, rows, p.soft_cap);
      for (uint64_t left = w.any; left != 0; left &= left - 1) {
        const int32_t n = __builtin_ctzll(left);
        float* const weights = w.weights[n];
        const float lse = p.lse[n];
#pragma omp simd
        for (int64_t i = 0; i < kLanes; ++i) weights[i] = fast_exp(weights[i] - lse);
        const float *const query = p.q.rows + n * key_pitch, *const dout =
                                                                 p.dout.rows + n * value_pitch;
        const Float of_value = row_products(v, value_pitch, dout, 0);
        const Float ds = load(weights) * (of_value - broadcast(p.less[n])) * load(w.slopes[n]);
        alignas(64) float slopes[kLanes], turned[kLanes];
        store(slopes, ds);
        store(turned, ds * load(w.scaled[n]));
        clear_others(w.readers[n], turned);
        p.turn[n] += sum(load(turned));
        add_rows(slopes, k, w.readers[n], key_pitch, p.dq + n * key_pitch);
        for (uint32_t who = w.readers[n]; who != 0; who &= who - 1) {
          const int32_t i = __builtin_ctz(who);
          for (int64_t c = 0; c < key_pitch; c += kLanes)
            store(dk + i * key_pitch + c,
                  load(dk + i * key_pitch + c) + broadcast(slopes[i]) * load(query + c));
          for (int64_t c = 0; c < value_pitch; c += kLanes)
            store(dv + i * value_pitch + c,
                  load(dv + i * value_pitch + c) + broadcast(weights[i]) * load(dout + c));
        }
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      narrow(dk + i * key_pitch, p.q.width, p.dk + (first + i) * p.dk_row);
      narrow(dv + i * value_pitch, p.dout.width, p.dv + (first + i) * p.dv_row);
    }
  }
}

template <Isa isa, class T>
constexpr FewKeysTable<T> table_of() {
  return {few_join<T>, few_gradient<T>, few_queries_gradient<T>};
}

}  // namespace
}  // namespace fovea::kernels
