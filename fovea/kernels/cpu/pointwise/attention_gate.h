// The gate of Focus on one tile of pairs (kernels/common/pair_gate.h; spec 11.2): its values and
// slopes, and which tiles it leaves alone. Shared by forward (a row is a query, lanes are keys) and
// backward (a row is a key, lanes are queries).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/attention_tile.h"

namespace fovea::kernels {
namespace {

/// Rows whose sums fit the registers.
constexpr int kGateRows = kRows < 8 ? kRows : 8;
/// Vectors of a row whose gates are computed side by side. The backward pass of log gates takes 1.2
/// times as long with two of them on AVX-512, and with one on AVX2.
constexpr int kGateVectors = kRegisters == 32 ? 1 : 2;

/// Whether the pairs of a tile are local: all, some, none.
enum class Reach { near, mixed, far };

/// Smallest and largest position of some tokens.
struct Extent {
  int64_t first = 0, last = -1;

  FOVEA_INLINE void take(int64_t position) {
    first = position < first || last < first ? position : first;
    last = position > last ? position : last;
  }
};

FOVEA_INLINE Reach reach_of(const GateRule& rule, const Extent& queries, const Extent& keys) {
  if (keys.last < rule.sinks || queries.last - keys.first < rule.window) return Reach::near;
  if (keys.first >= rule.sinks && queries.first - keys.last >= rule.window) return Reach::far;
  return Reach::mixed;
}

FOVEA_INLINE Int local_lanes(const GateRule& rule, Int query_position, Int key_position) {
  return (query_position - key_position < rule.window) | (key_position < rule.sinks);
}

/// The gate of local pairs.
FOVEA_INLINE float neutral_gate(const GateRule& rule) {
  return rule.form == PairGate::Form::log_sigmoid ? 0.0f : 1.0f;
}

/// The larger of z and `least`; NaN stays NaN (larger() gives its second operand then).
FOVEA_INLINE Float at_least(float least, Float z) { return larger(broadcast(least), z); }

/// sigma(z) and its derivative, which stays exact where sigma is nearly 1; `degree` of
/// exp2_lanes().
template <int degree>
FOVEA_INLINE void sigmoid_lanes(Float z, Float& value, Float& slope) {
  const Float e = exp2_lanes<degree>(at_least(-80.0f, z) * -kLog2E);
  value = inverse(1.0f + e);
  slope = value * (value * e);
}

/// ln sigma(z), at any z, and its derivative.
template <int degree>
FOVEA_INLINE void log_sigmoid_lanes(Float z, Float& value, Float& slope) {
  const Float e = exp2_lanes<degree>((z > 0.0f ? -z : z) * kLog2E), part = 1.0f / (1.0f + e);
  value = (z > 0.0f ? Float{} : z) - log2_lanes(1.0f + e) * kLn2;
  slope = z > 0.0f ? e * part : part;
}

/// The factor that the gate is (log_sigmoid: the summand), and its derivative by z.
template <int degree>
FOVEA_INLINE void gate_lanes(const GateRule& rule, Float z, Float& value, Float& slope) {
  value = z;
  slope = broadcast(1.0f);
  if (rule.form == PairGate::Form::log_sigmoid)
    log_sigmoid_lanes<5>(z, value, slope);
  else if (rule.form == PairGate::Form::capped_weight)
    value = -at_least(-1.0f - rule.offset, -z);
  else if (rule.form != PairGate::Form::weight)
    sigmoid_lanes<degree>(z, value, slope);
}

/// gate_lanes() of some pairs; the slope is written where it is not 1.
struct GateTile {
  alignas(64) float value[kRows][kPanel], slope[kRows][kPanel];
};

/// `left` [kRows][pitch], `right` [pitch][kPanel]. local(r, v) is asked for mixed tiles only;
/// slopes are written where slopes_vary().
template <class P, bool slopes, class Local>
FOVEA_INLINE void gate_tile(const GateRule& rule, Reach reach, const float* left,
                            const float* right, const Local& local, GateTile& tile) {
  for (int first = 0; first < kRows; first += kGateRows) {
    Float z[kGateRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kGateRows; ++r) z[r][0] = z[r][1] = broadcast(rule.offset);
    multiply_add<Single>(z, rule.pitch, left + first * rule.pitch, rule.pitch, 1, right, kPanel);
    if (rule.form == PairGate::Form::weight && reach == Reach::far) {
      store_tile(z, tile.value[first], kPanel);
      continue;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kGateRows; ++r) {
#pragma GCC unroll kGateVectors
      for (int v = 0; v < 2; ++v) {
        Float value, slope;
        gate_lanes<P::kExpDegree>(rule, z[r][v], value, slope);
        if (reach == Reach::mixed) {
          const Int near = local(first + r, v);
          value = near ? broadcast(neutral_gate(rule)) : value;
          slope = near ? Float{} : slope;
        }
        store(tile.value[first + r] + v * kLanes, value);
        if (slopes) store(tile.slope[first + r] + v * kLanes, slope);
      }
    }
  }
}

/// Whether the slopes of such a tile are not all 1.
FOVEA_INLINE bool slopes_vary(const GateRule& rule, Reach reach) {
  return rule.form != PairGate::Form::weight || reach != Reach::far;
}

/// ln sigma(z) of one number.
FOVEA_INLINE float log_sigmoid(float z) {
  return (z < 0.0f ? z : 0.0f) - __builtin_log1pf(__builtin_expf(z < 0.0f ? z : -z));
}

/// The gate of one query where keys lie row after row (decoding).
inline void gate_row(const GateRow& p) {
  const bool adds = p.rule.form == PairGate::Form::log_sigmoid;
  const auto value = [&p, adds](int64_t key, float z) {
    const KeyRange& range = key >= p.near.begin && key < p.near.end ? p.near : p.far;
    const int64_t position = key + range.shift;
    if (p.position - position < p.rule.window || position < p.rule.sinks) return adds ? 0.0f : 1.0f;
    if (adds) return log_sigmoid(z);
    if (p.rule.form == PairGate::Form::capped_weight)
      return z > 1.0f + p.rule.offset ? 1.0f + p.rule.offset : z;
    return p.rule.form == PairGate::Form::weight ? z : 1.0f / (1.0f + __builtin_expf(-z));
  };
  for (int64_t key = p.begin; key < p.end; key += kLanes) {
    Float sums[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const float* row = p.keys + (key + i < p.end ? key + i : p.end - 1) * p.columns;
      sums[i] = Float{};
      for (int64_t c = 0; c < p.columns; c += kLanes) {
        const int64_t left = p.columns - c < kLanes ? p.columns - c : kLanes;
        sums[i] += load_first(p.query + c, left) * load_first(row + c, left);
      }
    }
    alignas(64) float z[kLanes];
    store(z, sum_each(sums) + p.rule.offset);
    for (int64_t i = 0; i < kLanes && key + i < p.end; ++i)
      p.values[key + i] = value(key + i, z[i]);
  }
}

}  // namespace
}  // namespace fovea::kernels
