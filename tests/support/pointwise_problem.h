// A random problem for the attention kernels with its truth: scalar loops in float64, forward and
// backward, written from the formulas (spec 0.1, 6.3, 6.4, 7.4, 7.5, 10, 11.2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "fovea/base/rng.h"
#include "fovea/kernels/backend.h"
#include "fovea/kernels/common/dropout.h"
#include "fovea/kernels/cpu/grouped/grouped.h"
#include "fovea/kernels/cpu/pointwise/attention.h"
#include "fovea/kernels/cpu/tile_sizes.h"

namespace fovea::testing {

/// What a problem uses; sizes and one flag a stage.
struct PointwiseSettings {
  kernels::AttentionSizes sizes{2, 2, 1, 40, 40, 16, 16};
  MaskRule mask;
  int64_t documents = 1;           ///< of equal length
  std::vector<TokenPlace> places;  ///< of keys, the last are the queries'; empty: by `documents`
  double scale = 0.25, soft_cap = 0.0, dropout = 0.0;
  bool tau = false, alibi = false, bias = false, sink = false, lse_gradient = true;
  kernels::PairGate gate;  ///< without the pointers
  /// Hard Focus on top of the mask, where there are memberships: one a key.
  std::vector<uint64_t> members;
  int64_t groups = 8, focus_window = 1, focus_sinks = 0;
  /// Whether a query sees a key, both by their number among the keys; empty: by the above alone.
  std::function<bool(int64_t, int64_t)> related;
  /// In place of the kernels for bfloat16 of the instruction set in force; null: these.
  const kernels::AttentionTable<BFloat16>* table = nullptr;
  /// In place of the CPU's kernels, for forward and backward; null: these.
  const kernels::Backend* backend = nullptr;

  bool sees(TokenPlace query, TokenPlace key, uint64_t query_set, uint64_t key_set) const {
    return query.position - key.position < focus_window || key.position < focus_sinks ||
           (query_set & key_set) != 0;
  }
};

/// Every result by name, in float64.
struct PointwiseNumbers {
  std::vector<double> out, lse, dq, dk, dv, dtau, dsink, dbias;
  std::vector<double> dgate_query, dgate_key;
};

/// Largest difference over the largest size of the truth, which counts as `least` at least: the
/// size of terms that may cancel. Infinities must agree.
inline double numbers_error(const std::vector<double>& got, const std::vector<double>& truth,
                            double least = 1e-12) {
  double difference = 0.0, size = 0.0;
  for (size_t n = 0; n < truth.size(); ++n) {
    if (got[n] == truth[n]) continue;
    if (!std::isfinite(got[n]) || !std::isfinite(truth[n]))
      return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::abs(got[n] - truth[n]));
  }
  for (const double x : truth) size = std::isfinite(x) ? std::max(size, std::abs(x)) : size;
  return size < 1e-12 ? difference : difference / std::max(size, least);
}

template <class T>
class PointwiseProblem {
 public:
  static constexpr int64_t kDistances = 21;

  explicit PointwiseProblem(const PointwiseSettings& settings, uint64_t seed = 1)
      : settings_(settings), s_(settings.sizes), random_(seed) {
    q_ = normal(s_.batch * s_.heads * s_.queries * s_.head_dim);
    k_ = normal(s_.batch * s_.kv_heads * s_.keys * s_.head_dim);
    v_ = normal(s_.batch * s_.kv_heads * s_.keys * s_.value_dim);
    dout_ = normal(s_.batch * s_.heads * s_.queries * s_.value_dim);
    out_.resize(dout_.size());
    dq_.resize(q_.size());
    dk_.resize(k_.size());
    dv_.resize(v_.size());
    const size_t rows = static_cast<size_t>(s_.batch * s_.heads * s_.queries);
    for (std::vector<float>* x : {&lse_, &dlse_, &dtau_}) x->resize(rows);
    for (float& x : dlse_) x = static_cast<float>(random_.normal());
    tau_ = positive(s_.batch * s_.queries, 1.5);
    slopes_ = positive(s_.heads, 0.01);
    sink_ = positive(s_.heads, -0.5);
    bias_ = positive(s_.heads * kDistances, -0.5);
    dsink_.resize(static_cast<size_t>(s_.batch * s_.heads));
    dbias_.resize(static_cast<size_t>(s_.batch * s_.heads * kDistances));
    const int64_t columns = settings.gate.columns;
    query_gate_ = positive(s_.batch * s_.queries * columns, 0.0);
    key_gate_ = positive(s_.batch * s_.keys * columns, 0.0);
    dgate_query_.resize(static_cast<size_t>(s_.batch * s_.heads * s_.queries * columns));
    dgate_key_.resize(static_cast<size_t>(s_.batch * s_.kv_heads * s_.keys * columns));
    for (int64_t i = 0; i < s_.queries; ++i)
      query_places_.push_back(place(std::max<int64_t>(s_.keys - s_.queries, 0) + i));
    for (int64_t j = 0; j < s_.keys; ++j) key_places_.push_back(place(j));
    visits_.push_back(make_visits(settings.mask, query_places_, key_places_, kernels::kTileSizes));
  }

  std::vector<T>& queries() { return q_; }
  std::vector<T>& output_gradients() { return dout_; }
  std::vector<T>& keys() { return k_; }
  std::vector<T>& values() { return v_; }
  std::vector<float>& lse_gradients() { return dlse_; }
  std::vector<float>& query_gates() { return query_gate_; }
  std::vector<float>& key_gates() { return key_gate_; }
  std::vector<double> outputs() const { return doubles(out_); }
  kernels::ScoreParameters rule() const {
    kernels::ScoreParameters r{.scale = static_cast<float>(settings_.scale),
                               .soft_cap = static_cast<float>(settings_.soft_cap),
                               .dropout = static_cast<float>(settings_.dropout),
                               .dropout_seed = 99,
                               .dropout_layer = 3};
    if (settings_.tau) r.tau = tau_.data();
    if (settings_.alibi) r.alibi = slopes_.data();
    if (settings_.sink) r.sink_logit = sink_.data();
    r.gate = settings_.gate;
    r.gate.query = query_gate_.data();
    r.gate.key = key_gate_.data();
    r.gate.query_batch = s_.queries * settings_.gate.columns;
    r.gate.key_batch = s_.keys * settings_.gate.columns;
    if (!settings_.bias) return r;
    r.distance_bias = bias_.data();
    r.bias_count = kDistances;
    r.bias_first = settings_.mask.causal ? 0 : -kDistances / 2;
    return r;
  }

  /// By the kernels, forward then backward. Tensors lie as [batch][token][head][width].
  PointwiseNumbers by_kernels() {
    run_forward();
    solve(kernels::AttentionBackward<T>{
        .sizes = s_,
        .rule = rule(),
        .visits = visits_,
        .q = rows<const T>(q_, s_.heads, s_.queries, s_.head_dim),
        .k = rows<const T>(k_, s_.kv_heads, s_.keys, s_.head_dim),
        .v = rows<const T>(v_, s_.kv_heads, s_.keys, s_.value_dim),
        .out = rows<const T>(out_, s_.heads, s_.queries, s_.value_dim),
        .dout = rows<const T>(dout_, s_.heads, s_.queries, s_.value_dim),
        .lse = lse_.data(),
        .dlse = settings_.lse_gradient ? dlse_.data() : nullptr,
        .dq = rows<T>(dq_, s_.heads, s_.queries, s_.head_dim),
        .dk = rows<T>(dk_, s_.kv_heads, s_.keys, s_.head_dim),
        .dv = rows<T>(dv_, s_.kv_heads, s_.keys, s_.value_dim),
        .dtau = settings_.tau ? dtau_.data() : nullptr,
        .dsink = settings_.sink ? dsink_.data() : nullptr,
        .dbias = settings_.bias ? dbias_.data() : nullptr,
        .dgate_query = gated() ? dgate_query_.data() : nullptr,
        .dgate_key = gated() ? dgate_key_.data() : nullptr});
    return {doubles(out_),         doubles(lse_),      doubles(dq_),    doubles(dk_),
            doubles(dv_),          doubles(dtau_),     doubles(dsink_), doubles(dbias_),
            doubles(dgate_query_), doubles(dgate_key_)};
  }

  void run_forward() {
    solve(kernels::AttentionForward<T>{.sizes = s_,
                                       .rule = rule(),
                                       .visits = visits_,
                                       .q = rows<const T>(q_, s_.heads, s_.queries, s_.head_dim),
                                       .k = rows<const T>(k_, s_.kv_heads, s_.keys, s_.head_dim),
                                       .v = rows<const T>(v_, s_.kv_heads, s_.keys, s_.value_dim),
                                       .out = rows<T>(out_, s_.heads, s_.queries, s_.value_dim),
                                       .lse = lse_.data()});
  }

  /// Output and lse by the kernels that read keys where they lie. One document, no dropout.
  PointwiseNumbers by_decode() {
    const KeyRange all{.begin = 0, .end = s_.keys, .shift = 0};
    std::vector<RowVisits> seen;
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (const TokenPlace& query : query_places_)
        seen.push_back(row_visits(settings_.mask, query.position, {&all, 1}).value());
    }
    run_decode(seen);
    return {.out = doubles(out_), .lse = doubles(lse_)};
  }

  void run_decode(const std::vector<RowVisits>& seen) {
    run(kernels::AttentionDecode<T>{.sizes = s_,
                                    .rule = rule(),
                                    .rows = seen,
                                    .q = rows<const T>(q_, s_.heads, s_.queries, s_.head_dim),
                                    .k = rows<const T>(k_, s_.kv_heads, s_.keys, s_.head_dim),
                                    .v = rows<const T>(v_, s_.kv_heads, s_.keys, s_.value_dim),
                                    .out = rows<T>(out_, s_.heads, s_.queries, s_.value_dim),
                                    .lse = lse_.data()},
        table());
  }

  GroupedPlan plan(std::optional<GroupedKind> kind) const {
    return make_grouped_plan({.mask = settings_.mask,
                              .groups = settings_.groups,
                              .window = settings_.focus_window,
                              .sinks = settings_.focus_sinks},
                             {key_places_, settings_.members, s_.queries}, kernels::kTileSizes,
                             kind);
  }

  /// By the kernels of grouped attention, forward then backward.
  PointwiseNumbers by_plan(std::optional<GroupedKind> kind) { return by_plan(plan(kind)); }
  PointwiseNumbers by_plan(const GroupedPlan& one) {
    const std::span plans(&one, 1);
    run(kernels::GroupedForward<T>{.sizes = s_,
                                   .rule = rule(),
                                   .plans = plans,
                                   .q = rows<const T>(q_, s_.heads, s_.queries, s_.head_dim),
                                   .k = rows<const T>(k_, s_.kv_heads, s_.keys, s_.head_dim),
                                   .v = rows<const T>(v_, s_.kv_heads, s_.keys, s_.value_dim),
                                   .out = rows<T>(out_, s_.heads, s_.queries, s_.value_dim),
                                   .lse = lse_.data()},
        table());
    run(kernels::GroupedBackward<T>{.sizes = s_,
                                    .rule = rule(),
                                    .plans = plans,
                                    .q = rows<const T>(q_, s_.heads, s_.queries, s_.head_dim),
                                    .k = rows<const T>(k_, s_.kv_heads, s_.keys, s_.head_dim),
                                    .v = rows<const T>(v_, s_.kv_heads, s_.keys, s_.value_dim),
                                    .out = rows<const T>(out_, s_.heads, s_.queries, s_.value_dim),
                                    .dout =
                                        rows<const T>(dout_, s_.heads, s_.queries, s_.value_dim),
                                    .lse = lse_.data(),
                                    .dlse = settings_.lse_gradient ? dlse_.data() : nullptr,
                                    .dq = rows<T>(dq_, s_.heads, s_.queries, s_.head_dim),
                                    .dk = rows<T>(dk_, s_.kv_heads, s_.keys, s_.head_dim),
                                    .dv = rows<T>(dv_, s_.kv_heads, s_.keys, s_.value_dim),
                                    .dtau = settings_.tau ? dtau_.data() : nullptr,
                                    .dsink = settings_.sink ? dsink_.data() : nullptr},
        table());
    return {doubles(out_), doubles(lse_),  doubles(dq_),    doubles(dk_),
            doubles(dv_),  doubles(dtau_), doubles(dsink_), doubles(dbias_)};
  }

  /// Whether query i sees key j.
  bool sees(int64_t i, int64_t j) const {
    const TokenPlace &query = query_places_[i], &key = key_places_[j];
    if (!allowed(settings_.mask, query, key)) return false;
    const std::vector<uint64_t>& sets = settings_.members;
    const int64_t token = s_.keys - s_.queries + i;  // where queries are keys, too
    if (!sets.empty() && !settings_.sees(query, key, sets[static_cast<size_t>(token)], sets[j]))
      return false;
    return !settings_.related || settings_.related(token, j);
  }

  PointwiseNumbers by_formula() const {
    PointwiseNumbers n;
    n.out.resize(out_.size());
    n.dq.resize(q_.size());
    n.dk.resize(k_.size());
    n.dv.resize(v_.size());
    n.lse.resize(lse_.size());
    n.dtau.resize(lse_.size());
    n.dsink.resize(dsink_.size());
    n.dbias.resize(dbias_.size());
    n.dgate_query.resize(dgate_query_.size());
    n.dgate_key.resize(dgate_key_.size());
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t h = 0; h < s_.heads; ++h) {
        for (int64_t i = 0; i < s_.queries; ++i) add_row(b, h, i, n);
      }
    }
    return n;
  }

 private:
  const kernels::AttentionTable<T>* table() const {
    if constexpr (std::is_same_v<T, BFloat16>) return settings_.table;
    return nullptr;
  }
  template <class Problem>
  void solve(const Problem& problem) const {
    if (settings_.backend != nullptr) {
      settings_.backend->run(problem);
    } else {
      run(problem, table());
    }
  }
  struct Pair {
    double raw = 0.0, logit = -std::numeric_limits<double>::infinity(), slope = 1.0, keep = 1.0;
    double weight = 0.0;
    int64_t bias = 0;
    double gate_slope = 0.0;  // d logit / d z
  };

  bool gated() const { return settings_.gate.form != kernels::PairGate::Form::none; }

  // From the capped logit of a pair to the gated one.
  void apply_gate(int64_t b, int64_t i, int64_t j, Pair& p) const {
    using Form = kernels::PairGate::Form;
    const kernels::PairGate& gate = settings_.gate;
    const int64_t key = key_places_[j].position, columns = gate.columns;
    if (!gated() || query_places_[i].position - key < gate.window || key < gate.sinks) return;
    double z = gate.offset;
    for (int64_t c = 0; c < columns; ++c)
      z += static_cast<double>(query_gate_[(b * s_.queries + i) * columns + c]) *
           key_gate_[(b * s_.keys + j) * columns + c];
    const double sigma = 1.0 / (1.0 + std::exp(-z));
    switch (gate.form) {
      case Form::weight:
        p.gate_slope = 1.0 / z;
        p.logit += std::log(z);
        break;
      case Form::capped_weight:
        z = std::min(z, 1.0 + gate.offset);
        p.gate_slope = 1.0 / z;
        p.logit += std::log(z);
        break;
      case Form::sigmoid_weight:
        p.gate_slope = 1.0 - sigma;
        p.logit += std::log(sigma);
        break;
      default:
        p.gate_slope = p.logit * sigma * (1.0 - sigma);
        p.logit *= sigma;
        p.slope *= sigma;
    }
  }

  Pair pair_of(int64_t b, int64_t h, int64_t i, int64_t j) const {
    Pair p;
    const TokenPlace &query = query_places_[i], &key = key_places_[j];
    if (!sees(i, j)) return p;
    const T *q = at(q_, b, i, h, s_.queries, s_.heads, s_.head_dim),
            *k = at(k_, b, j, h * s_.kv_heads / s_.heads, s_.keys, s_.kv_heads, s_.head_dim);
    for (int64_t c = 0; c < s_.head_dim; ++c)
      p.raw += static_cast<double>(to_float(q[c])) * to_float(k[c]);
    p.raw *= scale_of(b, i);
    p.logit = p.raw;
    if (settings_.soft_cap > 0.0) {
      const double t = std::tanh(p.raw / settings_.soft_cap);
      p.logit = settings_.soft_cap * t;
      p.slope = 1.0 - t * t;
    }
    apply_gate(b, i, j, p);
    const int64_t distance = query.position - key.position;
    if (settings_.alibi) p.logit -= static_cast<double>(slopes_[h]) * static_cast<double>(distance);
    if (settings_.bias) {
      p.bias = std::clamp<int64_t>(distance - rule().bias_first, 0, kDistances - 1);
      p.logit += bias_[h * kDistances + p.bias];
    }
    if (settings_.dropout > 0.0) {
      const DropoutStream stream{mix_seed(99, static_cast<uint64_t>(b)), 3,
                                 static_cast<uint32_t>(h)};
      p.keep =
          dropout_keeps(stream, static_cast<float>(settings_.dropout), s_.keys - s_.queries + i, j)
              ? 1.0 / (1.0 - settings_.dropout)
              : 0.0;
    }
    return p;
  }

  // Adds row i of head h to every result.
  void add_row(int64_t b, int64_t h, int64_t i, PointwiseNumbers& n) const {
    const double nothing = -std::numeric_limits<double>::infinity();
    const double sink = settings_.sink ? sink_[h] : nothing;
    const int64_t row = (b * s_.heads + h) * s_.queries + i, e = s_.value_dim;
    std::vector<Pair> pairs;
    double top = sink;
    for (int64_t j = 0; j < s_.keys; ++j) {
      pairs.push_back(pair_of(b, h, i, j));
      top = std::max(top, pairs.back().logit);
    }
    double total = top > nothing ? std::exp(sink - top) : 0.0;
    for (const Pair& p : pairs) total += p.logit > nothing ? std::exp(p.logit - top) : 0.0;
    n.lse[row] = total > 0.0 ? top + std::log(total) : nothing;
    double* out = at(n.out, b, i, h, s_.queries, s_.heads, e);
    const T* dout = at(dout_, b, i, h, s_.queries, s_.heads, e);
    double dot = settings_.lse_gradient ? -static_cast<double>(dlse_[row]) : 0.0;
    for (int64_t j = 0; j < s_.keys; ++j) {
      Pair& p = pairs[j];
      p.weight = p.logit > nothing ? std::exp(p.logit - n.lse[row]) : 0.0;
      const T* v = at(v_, b, j, h * s_.kv_heads / s_.heads, s_.keys, s_.kv_heads, e);
      for (int64_t c = 0; c < e; ++c) out[c] += p.weight * p.keep * to_float(v[c]);
    }
    for (int64_t c = 0; c < e; ++c) dot += out[c] * to_float(dout[c]);
    if (settings_.sink) n.dsink[b * s_.heads + h] -= std::exp(sink - n.lse[row]) * dot;
    for (int64_t j = 0; j < s_.keys; ++j) add_gradient(b, h, i, j, pairs[j], dot, n);
  }

  void add_gradient(int64_t b, int64_t h, int64_t i, int64_t j, const Pair& p, double dot,
                    PointwiseNumbers& n) const {
    if (p.weight == 0.0) return;
    const int64_t g = h * s_.kv_heads / s_.heads, e = s_.value_dim, d = s_.head_dim;
    const T *v = at(v_, b, j, g, s_.keys, s_.kv_heads, e),
            *dout = at(dout_, b, i, h, s_.queries, s_.heads, e);
    double* dv = at(n.dv, b, j, g, s_.keys, s_.kv_heads, e);
    double dp = 0.0;
    for (int64_t c = 0; c < e; ++c) {
      dv[c] += p.weight * p.keep * to_float(dout[c]);
      dp += p.keep * to_float(dout[c]) * to_float(v[c]);
    }
    const double dlogit = p.weight * (dp - dot), ds = dlogit * p.slope;
    if (settings_.bias) n.dbias[(b * s_.heads + h) * kDistances + p.bias] += dlogit;
    if (settings_.tau)
      n.dtau[(b * s_.heads + h) * s_.queries + i] -= ds * p.raw / tau_[b * s_.queries + i];
    const int64_t columns = settings_.gate.columns;
    for (int64_t c = 0; c < columns; ++c) {
      const double dz = dlogit * p.gate_slope;
      n.dgate_query[((b * s_.heads + h) * s_.queries + i) * columns + c] +=
          dz * key_gate_[(b * s_.keys + j) * columns + c];
      n.dgate_key[((b * s_.kv_heads + g) * s_.keys + j) * columns + c] +=
          dz * query_gate_[(b * s_.queries + i) * columns + c];
    }
    const T *q = at(q_, b, i, h, s_.queries, s_.heads, d),
            *k = at(k_, b, j, g, s_.keys, s_.kv_heads, d);
    double *dq = at(n.dq, b, i, h, s_.queries, s_.heads, d),
           *dk = at(n.dk, b, j, g, s_.keys, s_.kv_heads, d);
    for (int64_t c = 0; c < d; ++c) {
      dq[c] += ds * scale_of(b, i) * to_float(k[c]);
      dk[c] += ds * scale_of(b, i) * to_float(q[c]);
    }
  }

  double scale_of(int64_t b, int64_t i) const {
    return settings_.tau ? 1.0 / tau_[b * s_.queries + i] : settings_.scale;
  }

  TokenPlace place(int64_t index) const {
    if (!settings_.places.empty()) return settings_.places[static_cast<size_t>(index)];
    const int64_t length = (std::max(s_.keys, s_.queries) + settings_.documents - 1) /
                           std::max<int64_t>(settings_.documents, 1);
    return {.document = index / length, .position = index % length};
  }

  std::vector<T> normal(int64_t count) {
    std::vector<T> x(static_cast<size_t>(count));
    for (T& element : x) from_float(static_cast<float>(random_.normal()), element);
    return x;
  }
  std::vector<float> positive(int64_t count, double from) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float& element : x) element = static_cast<float>(from + random_.uniform());
    return x;
  }

  template <class Vector>
  static auto at(Vector& x, int64_t b, int64_t token, int64_t h, int64_t tokens, int64_t heads,
                 int64_t width) {
    return x.data() + ((b * tokens + token) * heads + h) * width;
  }
  template <class U, class Vector>
  static kernels::HeadRows<U> rows(Vector& x, int64_t heads, int64_t tokens, int64_t width) {
    return {x.data(), tokens * heads * width, width, heads * width};
  }
  template <class Vector>
  static std::vector<double> doubles(const Vector& x) {
    std::vector<double> out;
    for (const auto& element : x) out.push_back(static_cast<double>(to_float(element)));
    return out;
  }

  PointwiseSettings settings_;
  kernels::AttentionSizes s_;
  Rng random_;
  std::vector<T> q_, k_, v_, dout_, out_, dq_, dk_, dv_;
  std::vector<float> lse_, dlse_, tau_, slopes_, sink_, bias_, dtau_, dsink_, dbias_;
  std::vector<float> query_gate_, key_gate_, dgate_query_, dgate_key_;
  std::vector<TokenPlace> query_places_, key_places_;
  std::vector<Visits> visits_;
};

}  // namespace fovea::testing
