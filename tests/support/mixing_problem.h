// A random problem for the mixing kernels with its truth (mixing_truth.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include "fovea/base/rng.h"
#include "fovea/kernels/backend.h"
#include "fovea/kernels/common/bfloat16.h"
#include "fovea/kernels/cpu/decode/mixing_decode.h"
#include "fovea/kernels/cpu/mixing/mixing.h"
#include "fovea/kernels/cpu/tile_sizes.h"
#include "tests/support/mixing_truth.h"

namespace fovea::testing {

/// Operands and output gradients, drawn in T and float32 and kept in float64, too.
template <class T>
class MixingProblem {
 public:
  /// Kernels and mixes are the identity plus normal numbers times `noise`.
  explicit MixingProblem(const MixingSettings& settings, uint64_t seed = 1, double noise = 0.1)
      : settings_(settings), s_(settings.sizes), random_(seed) {
    q_ = normal(s_.batch * s_.queries * s_.heads * s_.head_dim, operands_.q);
    k_ = normal(s_.batch * s_.keys * s_.kv_heads * s_.head_dim, operands_.k);
    v_ = normal(s_.batch * s_.keys * s_.kv_heads * s_.value_dim, operands_.v);
    dout_ = normal(s_.batch * s_.queries * s_.heads * s_.value_dim, dout_exact_);
    if (settings.tau) tau_ = floats(s_.batch * s_.queries, 1.0, 1.5, operands_.tau);
    if (settings.sink) sink_ = floats(s_.heads, 1.0, -0.5, operands_.sink);
    kernel_before_ = kernel(settings.before, noise, operands_.kernel_before);
    kernel_after_ = kernel(settings.after, noise, operands_.kernel_after);
    mix_before_ = mix(settings.mix_before, noise, operands_.mix_before);
    mix_after_ = mix(settings.mix_after, noise, operands_.mix_after);
    const int64_t rows = s_.batch * s_.heads * s_.queries;
    if (settings.lse_gradient) dlse_ = floats(rows, 2.0, -1.0, dlse_exact_);
    if (settings.gated()) {
      gate_query_ = floats(s_.batch * s_.queries * settings.gate_columns, 1.0, gate_from(),
                           operands_.gate_query);
      gate_key_ =
          floats(s_.batch * s_.keys * settings.gate_columns, 1.0, gate_from(), operands_.gate_key);
    }
    bias_ = floats(s_.heads * settings.bias_count, 1.0, -0.5, operands_.bias);
    for (int64_t h = 0; settings.alibi && h < s_.heads; ++h)
      slopes_.push_back(static_cast<float>(settings.slope(h)));
    for (int64_t b = 0; settings.groups > 0 && b < s_.batch; ++b) {
      for (int64_t j = 0; j < s_.keys; ++j) key_members_.push_back(settings.members(b, j));
      for (int64_t i = 0; i < s_.queries; ++i)
        query_members_.push_back(settings.query_members(b, i));
    }
    std::vector<TokenPlace> queries, keys;
    for (int64_t i = 0; i < s_.queries; ++i) queries.push_back(settings.query_place(i));
    for (int64_t j = 0; j < s_.keys; ++j) keys.push_back(settings.key_place(j));
    visits_.push_back(make_visits(settings.mask, queries, keys, kernels::kTileSizes));
  }

  /// Kernels, mixes and sinks of another problem; the truth keeps what was drawn.
  void take_parameters(const MixingProblem& other) {
    sink_ = other.sink_;
    kernel_before_ = other.kernel_before_;
    kernel_after_ = other.kernel_after_;
    mix_before_ = other.mix_before_;
    mix_after_ = other.mix_after_;
  }

  const MixingSettings& settings() const { return settings_; }
  const MixingOperands& operands() const { return operands_; }
  const std::vector<double>& output_gradients() const { return dout_exact_; }
  /// To be changed by tests; the truth keeps what was drawn.
  std::vector<T>& queries() { return q_; }
  std::vector<T>& keys() { return k_; }
  std::vector<T>& values() { return v_; }
  std::vector<T>& output_gradient_rows() { return dout_; }
  std::vector<float>& key_gates() { return gate_key_; }
  std::vector<int64_t>& key_members() { return key_members_; }

  MixingOutputs outputs_by_formula() const { return mixing_outputs(settings_, operands_); }
  MixingOperands gradients_by_formula() const {
    return mixing_gradients(settings_, operands_, dout_exact_, dlse_exact_);
  }

  kernels::ScoreParameters rule() const {
    return {.scale = static_cast<float>(settings_.scale),
            .tau = settings_.tau ? tau_.data() : nullptr,
            .soft_cap = static_cast<float>(settings_.soft_cap),
            .alibi = settings_.alibi ? slopes_.data() : nullptr,
            .distance_bias = settings_.bias_count > 0 ? bias_.data() : nullptr,
            .bias_first = settings_.bias_first,
            .bias_count = settings_.bias_count,
            .sink_logit = settings_.sink ? sink_.data() : nullptr,
            .dropout = static_cast<float>(settings_.dropout),
            .dropout_seed = MixingSettings::kDropoutSeed,
            .dropout_layer = MixingSettings::kLayer,
            .gate = gate()};
  }
  kernels::PairGate gate() const {
    if (!settings_.gated()) return {};
    return {.form = settings_.gate,
            .offset = static_cast<float>(settings_.gate_offset),
            .least = 0.0f,
            .window = settings_.near,
            .sinks = settings_.sinks,
            .columns = settings_.gate_columns,
            .query = gate_query_.data(),
            .key = gate_key_.data(),
            .query_batch = s_.queries * settings_.gate_columns,
            .key_batch = s_.keys * settings_.gate_columns};
  }
  kernels::MemberMask members() const {
    if (settings_.groups == 0) return {};
    return {.query = query_members_.data(),
            .key = key_members_.data(),
            .query_batch = s_.queries,
            .key_batch = s_.keys,
            .window = settings_.near,
            .sinks = settings_.sinks};
  }
  kernels::MixingRule mixing() const {
    const auto taps = [](const std::vector<float>& x, const MixingSettings::Extent& extent) {
      return kernels::KeyQueryKernel{extent.queries > 0 ? x.data() : nullptr, extent.queries,
                                     extent.keys};
    };
    const auto weights = [](const std::vector<float>& x, int64_t width) {
      return kernels::HeadMix{width > 0 ? x.data() : nullptr, width};
    };
    return {.kernel_before = taps(kernel_before_, settings_.before),
            .kernel_after = taps(kernel_after_, settings_.after),
            .mix_before = weights(mix_before_, settings_.mix_before),
            .mix_after = weights(mix_after_, settings_.mix_after),
            .equation = settings_.equation,
            .renormalise = settings_.renormalise};
  }

  /// `outputs.out` and so on as the forward kernels compute them.
  MixingOutputs outputs_by_kernels(const kernels::MixingTable<T>* table = nullptr) const {
    std::vector<T> out(dout_.size());
    std::vector<float> lse(row_count()), sums(row_count(), 1.0f);
    run_by(kernels::MixingForward<T>{.sizes = s_,
                                     .rule = rule(),
                                     .mixing = mixing(),
                                     .members = members(),
                                     .visits = visits_,
                                     .q = rows<const T>(q_, s_.heads, s_.queries, s_.head_dim),
                                     .k = rows<const T>(k_, s_.kv_heads, s_.keys, s_.head_dim),
                                     .v = rows<const T>(v_, s_.kv_heads, s_.keys, s_.value_dim),
                                     .out = rows<T>(out, s_.heads, s_.queries, s_.value_dim),
                                     .lse = lse.data(),
                                     .row_sums = sums.data(),
                                     .most_kept = most_kept_},
           table);
    return {doubles(out), doubles(lse), doubles(sums)};
  }
  /// MixingForward::most_kept.
  void keep(int64_t floats) { most_kept_ = floats; }

  /// The last `results` rows of `outputs.out` ([batch][results][heads][width]) and `outputs.lse` as
  /// the decoding kernels compute them.
  MixingOutputs outputs_by_decode(int64_t results) const {
    std::vector<T> out(static_cast<size_t>(s_.batch * results * s_.heads * s_.value_dim));
    std::vector<float> lse(static_cast<size_t>(s_.batch * s_.heads * results));
    const KeyRange keys{.begin = 0, .end = s_.keys, .shift = 0};
    std::vector<RowVisits> seen;
    for (int64_t n = 0; n < s_.batch * s_.queries; ++n) {
      const int64_t position = settings_.query_place(n % s_.queries).position;
      seen.push_back(row_visits(settings_.mask, position, {&keys, 1}).value());
    }
    kernels::run(
        kernels::MixingDecode<T>{.sizes = s_,
                                 .rule = rule(),
                                 .mixing = mixing(),
                                 .members = members(),
                                 .rows = seen,
                                 .results = results,
                                 .q = rows<const T>(q_, s_.heads, s_.queries, s_.head_dim),
                                 .k = rows<const T>(k_, s_.kv_heads, s_.keys, s_.head_dim),
                                 .v = rows<const T>(v_, s_.kv_heads, s_.keys, s_.value_dim),
                                 .out = rows<T>(out, s_.heads, results, s_.value_dim),
                                 .lse = lse.data()});
    return {doubles(out), doubles(lse), {}};
  }
  /// The same rows of whole outputs.
  MixingOutputs last_rows(const MixingOutputs& whole, int64_t results) const {
    MixingOutputs last;
    const int64_t row = s_.heads * s_.value_dim;
    for (int64_t b = 0; b < s_.batch; ++b) {
      const auto end = whole.out.begin() + (b + 1) * s_.queries * row;
      last.out.insert(last.out.end(), end - results * row, end);
    }
    for (int64_t n = 0; n < s_.batch * s_.heads; ++n) {
      const auto end = whole.lse.begin() + (n + 1) * s_.queries;
      last.lse.insert(last.lse.end(), end - results, end);
    }
    return last;
  }

  /// Memory that the forward kernels take beyond inputs and outputs.
  int64_t scratch_bytes() const {
    return kernels::scratch_bytes(kernels::MixingForward<T>{.sizes = s_,
                                                            .rule = rule(),
                                                            .mixing = mixing(),
                                                            .members = members(),
                                                            .visits = visits_,
                                                            .most_kept = most_kept_});
  }

  /// The gradients by the backward kernels, from the lse and sums of rows in `outputs`.
  MixingOperands gradients_by_kernels(const MixingOutputs& outputs,
                                      const kernels::MixingTable<T>* table = nullptr) const {
    const std::vector<float> lse(outputs.lse.begin(), outputs.lse.end()),
        sums(outputs.row_sums.begin(), outputs.row_sums.end());
    const size_t batch = static_cast<size_t>(s_.batch);
    std::vector<T> dq(q_.size()), dk(k_.size()), dv(v_.size());
    std::array<std::vector<float>, 9> d{
        std::vector<float>(settings_.tau ? row_count() : 0),
        std::vector<float>(settings_.sink ? batch * static_cast<size_t>(s_.heads) : 0),
        std::vector<float>(batch * kernel_before_.size()),
        std::vector<float>(batch * kernel_after_.size()),
        std::vector<float>(batch * mix_before_.size()),
        std::vector<float>(batch * mix_after_.size()),
        std::vector<float>(gate_query_.size()),
        std::vector<float>(gate_key_.size()),
        std::vector<float>(batch * bias_.size())};
    const auto target = [](std::vector<float>& x) { return x.empty() ? nullptr : x.data(); };
    run_by(
        kernels::MixingBackward<T>{.sizes = s_,
                                   .rule = rule(),
                                   .mixing = mixing(),
                                   .members = members(),
                                   .visits = visits_,
                                   .q = rows<const T>(q_, s_.heads, s_.queries, s_.head_dim),
                                   .k = rows<const T>(k_, s_.kv_heads, s_.keys, s_.head_dim),
                                   .v = rows<const T>(v_, s_.kv_heads, s_.keys, s_.value_dim),
                                   .dout = rows<const T>(dout_, s_.heads, s_.queries, s_.value_dim),
                                   .lse = lse.data(),
                                   .row_sums = sums.data(),
                                   .dlse = dlse_.empty() ? nullptr : dlse_.data(),
                                   .dq = rows<T>(dq, s_.heads, s_.queries, s_.head_dim),
                                   .dk = rows<T>(dk, s_.kv_heads, s_.keys, s_.head_dim),
                                   .dv = rows<T>(dv, s_.kv_heads, s_.keys, s_.value_dim),
                                   .dkernel_before = target(d[2]),
                                   .dkernel_after = target(d[3]),
                                   .dmix_before = target(d[4]),
                                   .dmix_after = target(d[5]),
                                   .dtau = target(d[0]),
                                   .dsink = target(d[1]),
                                   .dbias = target(d[8]),
                                   .dgate_query = target(d[6]),
                                   .dgate_key = target(d[7])},
        table);
    return {doubles(dq),   doubles(dk),   doubles(dv),   doubles(d[0]),
            doubles(d[1]), doubles(d[2]), doubles(d[3]), doubles(d[4]),
            doubles(d[5]), doubles(d[6]), doubles(d[7]), doubles(d[8])};
  }

 private:
  template <class Problem>
  void run_by(const Problem& problem, const kernels::MixingTable<T>* table) const {
    settings_.backend != nullptr ? settings_.backend->run(problem) : kernels::run(problem, table);
  }
  // Factors whose products `weight` takes are not negative; sigmoids take all.
  double gate_from() const {
    using Form = kernels::PairGate::Form;
    return settings_.gate == Form::weight || settings_.gate == Form::capped_weight ? 0.0 : -0.5;
  }
  size_t row_count() const { return static_cast<size_t>(s_.batch * s_.heads * s_.queries); }

  std::vector<T> normal(int64_t count, std::vector<double>& exact) {
    std::vector<T> x(static_cast<size_t>(count));
    for (T& element : x) {
      from_float(static_cast<float>(random_.normal()), element);
      exact.push_back(static_cast<double>(to_float(element)));
    }
    return x;
  }
  // factor * uniform + from.
  std::vector<float> floats(int64_t count, double factor, double from, std::vector<double>& exact) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float& element : x) {
      element = static_cast<float>(factor * random_.uniform() + from);
      exact.push_back(static_cast<double>(element));
    }
    return x;
  }
  std::vector<float> kernel(const MixingSettings::Extent& extent, double noise,
                            std::vector<double>& exact) {
    std::vector<float> x;
    for (int64_t h = 0; h < s_.heads; ++h) {
      for (int64_t a = 0; a < extent.queries; ++a) {
        for (int64_t b = 0; b < extent.keys; ++b) {
          const bool here = a == extent.queries - 1 && b == (extent.keys - 1) / 2;
          x.push_back(static_cast<float>(noise * random_.normal() + (here ? 1.0 : 0.0)));
        }
      }
    }
    exact.assign(x.begin(), x.end());
    return x;
  }
  std::vector<float> mix(int64_t width, double noise, std::vector<double>& exact) {
    std::vector<float> x;
    for (int64_t n = 0; width > 0 && n < s_.heads * width; ++n) {
      const bool same = n / width % width == n % width;
      x.push_back(static_cast<float>(noise * random_.normal() + (same ? 1.0 : 0.0)));
    }
    exact.assign(x.begin(), x.end());
    return x;
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

  MixingSettings settings_;
  kernels::AttentionSizes s_;
  Rng random_;
  MixingOperands operands_;
  std::vector<double> dout_exact_, dlse_exact_;
  std::vector<T> q_, k_, v_, dout_;
  std::vector<float> tau_, sink_, kernel_before_, kernel_after_, mix_before_, mix_after_, dlse_;
  std::vector<float> gate_query_, gate_key_, bias_, slopes_;
  std::vector<int64_t> query_members_, key_members_;
  int64_t most_kept_ = kernels::MixingForward<T>{}.most_kept;
  std::vector<Visits> visits_;
};

}  // namespace fovea::testing
