// The mixing kernels' truth: Multi-Token and talking-heads attention and all its gradients as plain
// loops over whole maps, in float64, written from the formulas (spec 2, 3.2 to 3.4, 6.3, 6.4, 10.2,
// 11.2; M-1 to M-17) and independent of every kernel. O(n^2) memory.
//
// Tensors are [batch][token][head][width]; maps are [head][query][key] of one row of the batch.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fovea/base/rng.h"
#include "fovea/kernels/common/dropout.h"
#include "fovea/kernels/common/mixing.h"

namespace fovea::kernels {
class Backend;
}

namespace fovea::testing {

/// What a problem uses: sizes and one setting a stage.
struct MixingSettings {
  struct Extent {
    int64_t queries = 0, keys = 0;
  };

  kernels::AttentionSizes sizes{2, 4, 2, 40, 40, 16, 16};
  MaskRule mask;
  int64_t documents = 1;           ///< of equal length
  std::vector<TokenPlace> places;  ///< of keys, the last are the queries'; empty: by `documents`
  double scale = 0.25, soft_cap = 0.0, dropout = 0.0;
  bool tau = false, sink = false, lse_gradient = true;
  Extent before, after;                   ///< cq and ck
  int64_t mix_before = 0, mix_after = 0;  ///< widths of the groups; 0: no mix
  kernels::KernelEquation equation = kernels::KernelEquation::eq5;
  bool renormalise = false;

  /// The gate of Focus with `gate_columns` factors a token, and the pairs that it leaves alone.
  kernels::PairGate::Form gate = kernels::PairGate::Form::none;
  double gate_offset = 0.0;
  int64_t gate_columns = 4, near = 1, sinks = 0;  ///< near and sinks: also of `members`
  int64_t groups = 0;                             ///< hard Focus: tokens are members of some
  bool alibi = false;
  const kernels::Backend* backend = nullptr;  ///< whose kernels; null: the CPU's
  int64_t bias_first = 0, bias_count = 0;     ///< a table of biases by distance

  bool gated() const { return gate != kernels::PairGate::Form::none; }
  /// Slopes of ALiBi.
  double slope(int64_t h) const { return alibi ? 0.02 * static_cast<double>(h + 1) : 0.0; }
  /// Memberships of token j of row b, by a rule that has no period in common with tiles.
  int64_t members(int64_t b, int64_t j) const {
    const int64_t first = (j * j + 3 * j + b) / 5 % groups;
    return int64_t{1} << first | int64_t{1} << (first + j % 3) % groups;
  }
  int64_t query_members(int64_t b, int64_t i) const {
    return members(b, std::max<int64_t>(sizes.keys - sizes.queries, 0) + i);
  }
  bool local(int64_t i, int64_t j) const {
    return query_place(i).position - key_place(j).position < near || key_place(j).position < sinks;
  }

  static constexpr uint64_t kDropoutSeed = 99;
  static constexpr uint32_t kLayer = 3;

  TokenPlace key_place(int64_t index) const {
    if (!places.empty()) return places[static_cast<size_t>(index)];
    const int64_t length = (std::max(sizes.keys, sizes.queries) + documents - 1) / documents;
    return {.document = index / length, .position = index % length};
  }
  /// Queries are the last of the tokens.
  TokenPlace query_place(int64_t i) const {
    return key_place(std::max<int64_t>(sizes.keys - sizes.queries, 0) + i);
  }
  bool seen(int64_t b, int64_t i, int64_t j) const {
    if (!allowed(mask, query_place(i), key_place(j))) return false;
    return groups == 0 || local(i, j) || (query_members(b, i) & members(b, j)) != 0;
  }
};

/// The operands, or the gradients of each: then kernels and mixes of every row of the batch, and
/// tau of every head ([batch][heads][queries]), as kernels::MixingBackward has them.
struct MixingOperands {
  std::vector<double> q, k, v, tau, sink, kernel_before, kernel_after, mix_before, mix_after;
  std::vector<double> gate_query, gate_key, bias;

  /// Every member with its name.
  std::vector<std::pair<std::string, std::vector<double>*>> named() {
    return {{"q", &q},
            {"k", &k},
            {"v", &v},
            {"tau", &tau},
            {"sink", &sink},
            {"kernel_before", &kernel_before},
            {"kernel_after", &kernel_after},
            {"mix_before", &mix_before},
            {"mix_after", &mix_after},
            {"gate_query", &gate_query},
            {"gate_key", &gate_key},
            {"bias", &bias}};
  }
};

struct MixingOutputs {
  std::vector<double> out, lse, row_sums;  ///< row_sums: 1 where rows are not renormalised
};

/// One row of the batch: all maps of the forward pass, and from them the gradients.
class MixingTruth {
 public:
  MixingTruth(const MixingSettings& settings, const MixingOperands& operands, int64_t b)
      : settings_(settings), s_(settings.sizes), x_(operands), b_(b) {
    const int64_t rows = s_.heads * s_.queries;
    for (std::vector<double>* map :
         {&logits_, &convolved_, &mixed_, &gated_, &weights_, &joined_, &scaled_, &final_})
      map->assign(static_cast<size_t>(rows * s_.keys), 0.0);
    lse_.assign(static_cast<size_t>(rows), -std::numeric_limits<double>::infinity());
    sums_.assign(static_cast<size_t>(rows), 1.0);
    divided_.assign(static_cast<size_t>(rows), false);
    first_.assign(static_cast<size_t>(s_.queries), 0);
    for (int64_t i = 1; i < s_.queries; ++i) {
      const bool same = settings.query_place(i).document == settings.query_place(i - 1).document;
      first_[i] = same ? first_[i - 1] : i;
    }
    seen_.resize(static_cast<size_t>(s_.queries * s_.keys));
    for (int64_t i = 0; i < s_.queries; ++i)
      for (int64_t j = 0; j < s_.keys; ++j) seen_[i * s_.keys + j] = settings.seen(b, i, j);
    run_forward();
  }

  void write(MixingOutputs& to) const {
    const int64_t e = s_.value_dim;
    for (int64_t h = 0; h < s_.heads; ++h) {
      for (int64_t i = 0; i < s_.queries; ++i) {
        const int64_t row = (b_ * s_.heads + h) * s_.queries + i;
        to.lse[row] = lse_[h * s_.queries + i];
        to.row_sums[row] = sums_[h * s_.queries + i];
        for (int64_t j = 0; j < s_.keys; ++j)
          for (int64_t c = 0; c < e; ++c)
            to.out[query_at(h, i, e) + c] +=
                keep(h, i, j) * final_[at(h, i, j)] * x_.v[key_at(h, j, e) + c];
      }
    }
  }

  /// Adds the gradients of sum(out dout) + sum(lse dlse); dlse may be empty.
  void add_gradients(const std::vector<double>& dout, const std::vector<double>& dlse,
                     MixingOperands& to) const {
    std::vector<double> d = final_gradient(dout, to);  // of final_
    d = mix_gradient(d, scaled_, x_.mix_after, settings_.mix_after, true, to.mix_after);
    renormalise_gradient(d);
    hide(d);
    d = convolution_gradient(d, weights_, x_.kernel_after, settings_.after, false, to.kernel_after);
    softmax_gradient(d, dlse, to);
    term_gradient(d, to);
    d = mix_gradient(d, convolved_, x_.mix_before, settings_.mix_before, false, to.mix_before);
    const bool eq4 = is_eq4();
    d = convolution_gradient(d, logits_, x_.kernel_before, settings_.before, eq4, to.kernel_before);
    if (!eq4 || settings_.before.queries == 0) hide(d);
    product_gradient(d, to);
  }

 private:
  using Map = std::vector<double>;
  using Extent = MixingSettings::Extent;

  int64_t at(int64_t h, int64_t i, int64_t j) const { return (h * s_.queries + i) * s_.keys + j; }
  bool seen(int64_t i, int64_t j) const { return seen_[i * s_.keys + j]; }
  bool is_eq4() const { return settings_.equation == kernels::KernelEquation::eq4; }
  int64_t query_at(int64_t h, int64_t i, int64_t width) const {
    return ((b_ * s_.queries + i) * s_.heads + h) * width;
  }
  int64_t key_at(int64_t h, int64_t j, int64_t width) const {
    return ((b_ * s_.keys + j) * s_.kv_heads + h * s_.kv_heads / s_.heads) * width;
  }
  double scale_of(int64_t i) const {
    return settings_.tau ? 1.0 / x_.tau[b_ * s_.queries + i] : settings_.scale;
  }
  // The scaled product of a pair, before the soft-cap.
  double product(int64_t h, int64_t i, int64_t j) const {
    double sum = 0.0;
    for (int64_t c = 0; c < s_.head_dim; ++c)
      sum += x_.q[query_at(h, i, s_.head_dim) + c] * x_.k[key_at(h, j, s_.head_dim) + c];
    return sum * scale_of(i);
  }
  double keep(int64_t h, int64_t i, int64_t j) const {
    if (settings_.dropout <= 0.0) return 1.0;
    const DropoutStream stream{mix_seed(MixingSettings::kDropoutSeed, static_cast<uint64_t>(b_)),
                               MixingSettings::kLayer, static_cast<uint32_t>(h)};
    const bool kept =
        dropout_keeps(stream, static_cast<float>(settings_.dropout), s_.keys - s_.queries + i, j);
    return kept ? 1.0 / (1.0 - settings_.dropout) : 0.0;
  }

  // f(tap, row, key) for every pair that a convolution adds at (i, j). `of_result`: the mask is
  // that of row i (Eq. 4); otherwise the map is 0 where its own row does not see.
  template <class F>
  void each_tap(const Extent& extent, bool of_result, int64_t h, int64_t i, int64_t j,
                const F& f) const {
    for (int64_t a = 0; a < extent.queries; ++a) {
      const int64_t row = i + a - (extent.queries - 1);
      if (row < first_[i]) continue;
      for (int64_t b = 0; b < extent.keys; ++b) {
        const int64_t key = j + b - (extent.keys - 1) / 2;
        if (key < 0 || key >= s_.keys || (of_result && !seen(i, key))) continue;
        f((h * extent.queries + a) * extent.keys + b, row, key);
      }
    }
  }

  template <class F>
  void each_pair(const F& f) const {
    for (int64_t h = 0; h < s_.heads; ++h)
      for (int64_t i = 0; i < s_.queries; ++i)
        for (int64_t j = 0; j < s_.keys; ++j) f(h, i, j);
  }
  void hide(Map& map) const {
    each_pair([&](int64_t h, int64_t i, int64_t j) {
      if (!seen(i, j)) map[at(h, i, j)] = 0.0;
    });
  }

  Map convolution(const Map& x, const std::vector<double>& kernel, const Extent& extent,
                  bool of_result) const {
    if (extent.queries == 0) return x;
    Map y(x.size(), 0.0);
    each_pair([&](int64_t h, int64_t i, int64_t j) {
      each_tap(extent, of_result, h, i, j, [&](int64_t tap, int64_t row, int64_t key) {
        y[at(h, i, j)] += kernel[tap] * x[at(h, row, key)];
      });
    });
    return y;
  }

  // f(weight, result, source) for heads of one group. `stored_in_out`: rows of a matrix are
  // sources.
  template <class F>
  void each_weight(int64_t width, bool stored_in_out, const F& f) const {
    for (int64_t result = 0; result < s_.heads; ++result) {
      for (int64_t n = 0; n < width; ++n) {
        const int64_t source = result / width * width + n;
        f(stored_in_out ? source * width + result % width : result * width + n, result, source);
      }
    }
  }

  Map mix(const Map& x, const std::vector<double>& weights, int64_t width,
          bool stored_in_out) const {
    if (width == 0) return x;
    Map y(x.size(), 0.0);
    const int64_t pairs = s_.queries * s_.keys;
    each_weight(width, stored_in_out, [&](int64_t weight, int64_t result, int64_t source) {
      for (int64_t n = 0; n < pairs; ++n)
        y[result * pairs + n] += weights[weight] * x[source * pairs + n];
    });
    return y;
  }

  void run_forward() {
    const double cap = settings_.soft_cap;
    each_pair([&](int64_t h, int64_t i, int64_t j) {
      const double s = product(h, i, j);
      logits_[at(h, i, j)] = cap > 0.0 ? cap * std::tanh(s / cap) : s;
    });
    if (!is_eq4()) hide(logits_);
    convolved_ = convolution(logits_, x_.kernel_before, settings_.before, is_eq4());
    mixed_ = mix(convolved_, x_.mix_before, settings_.mix_before, false);
    each_pair([&](int64_t h, int64_t i, int64_t j) {
      if (seen(i, j)) gated_[at(h, i, j)] = terms_of(h, i, j).logit;
    });
    for (int64_t h = 0; h < s_.heads; ++h)
      for (int64_t i = 0; i < s_.queries; ++i) softmax(h, i);
    joined_ = convolution(weights_, x_.kernel_after, settings_.after, false);
    hide(joined_);
    scaled_ = joined_;
    for (int64_t h = 0; h < s_.heads; ++h)
      for (int64_t i = 0; i < s_.queries; ++i) renormalise(h, i);
    final_ = mix(scaled_, x_.mix_after, settings_.mix_after, true);
  }

  void softmax(int64_t h, int64_t i) {
    const double nothing = -std::numeric_limits<double>::infinity();
    const double sink = settings_.sink ? x_.sink[h] : nothing;
    double top = sink;
    for (int64_t j = 0; j < s_.keys; ++j)
      if (seen(i, j)) top = std::max(top, gated_[at(h, i, j)]);
    if (top == nothing) return;
    double total = std::exp(sink - top);
    for (int64_t j = 0; j < s_.keys; ++j)
      if (seen(i, j)) total += std::exp(gated_[at(h, i, j)] - top);
    const double lse = lse_[h * s_.queries + i] = top + std::log(total);
    for (int64_t j = 0; j < s_.keys; ++j)
      if (seen(i, j)) weights_[at(h, i, j)] = std::exp(gated_[at(h, i, j)] - lse);
  }

  // A mixed logit with everything that joins it, ln w included, and its derivatives.
  struct Terms {
    double logit = 0.0, by_mixed = 1.0, by_z = 0.0;
  };
  Terms terms_of(int64_t h, int64_t i, int64_t j) const {
    using Form = kernels::PairGate::Form;
    const double s = mixed_[at(h, i, j)];
    Terms t{.logit = s};
    if (settings_.gated() && !settings_.local(i, j)) {
      const int64_t columns = settings_.gate_columns;
      double z = settings_.gate_offset;
      for (int64_t c = 0; c < columns; ++c)
        z += x_.gate_query[(b_ * s_.queries + i) * columns + c] *
             x_.gate_key[(b_ * s_.keys + j) * columns + c];
      const double sigma = 1.0 / (1.0 + std::exp(-z)),
                   capped = std::min(z, 1.0 + settings_.gate_offset);
      switch (settings_.gate) {
        case Form::weight:
          t = {.logit = s + std::log(z), .by_z = 1.0 / z};
          break;
        case Form::capped_weight:
          t = {.logit = s + std::log(capped), .by_z = 1.0 / capped};
          break;
        case Form::sigmoid_logit:
          t = {.logit = s * sigma, .by_mixed = sigma, .by_z = s * sigma * (1.0 - sigma)};
          break;
        default:  // sigmoid_weight and log_sigmoid
          t = {.logit = s + std::log(sigma), .by_z = 1.0 - sigma};
      }
    }
    const double distance = static_cast<double>(distance_of(i, j));
    t.logit -= settings_.slope(h) * distance;
    if (settings_.bias_count > 0) t.logit += x_.bias[bias_of(h, i, j)];
    return t;
  }
  int64_t distance_of(int64_t i, int64_t j) const {
    return settings_.query_place(i).position - settings_.key_place(j).position;
  }
  int64_t bias_of(int64_t h, int64_t i, int64_t j) const {
    const int64_t count = settings_.bias_count;
    return h * count + std::clamp<int64_t>(distance_of(i, j) - settings_.bias_first, 0, count - 1);
  }

  void renormalise(int64_t h, int64_t i) {
    if (!settings_.renormalise || settings_.after.queries == 0) return;
    double sum = 0.0;
    for (int64_t j = 0; j < s_.keys; ++j) sum += joined_[at(h, i, j)];
    if (std::abs(sum) <= 1e-6) return;
    sums_[h * s_.queries + i] = sum;
    divided_[h * s_.queries + i] = true;
    for (int64_t j = 0; j < s_.keys; ++j) scaled_[at(h, i, j)] /= sum;
  }

  Map final_gradient(const std::vector<double>& dout, MixingOperands& to) const {
    Map d(final_.size(), 0.0);
    const int64_t e = s_.value_dim;
    each_pair([&](int64_t h, int64_t i, int64_t j) {
      const double kept = keep(h, i, j);
      const int64_t row = query_at(h, i, e), value = key_at(h, j, e);
      for (int64_t c = 0; c < e; ++c) {
        to.v[value + c] += kept * final_[at(h, i, j)] * dout[row + c];
        d[at(h, i, j)] += kept * dout[row + c] * x_.v[value + c];
      }
    });
    return d;
  }

  Map mix_gradient(const Map& dy, const Map& x, const std::vector<double>& weights, int64_t width,
                   bool stored_in_out, std::vector<double>& to) const {
    if (width == 0) return dy;
    Map dx(dy.size(), 0.0);
    const int64_t pairs = s_.queries * s_.keys;
    double* const sums = to.data() + b_ * static_cast<int64_t>(weights.size());
    each_weight(width, stored_in_out, [&](int64_t weight, int64_t result, int64_t source) {
      for (int64_t n = 0; n < pairs; ++n) {
        sums[weight] += dy[result * pairs + n] * x[source * pairs + n];
        dx[source * pairs + n] += weights[weight] * dy[result * pairs + n];
      }
    });
    return dx;
  }

  void renormalise_gradient(Map& d) const {
    for (int64_t row = 0; row < s_.heads * s_.queries; ++row) {
      if (!divided_[row]) continue;
      double dot = 0.0;
      for (int64_t j = 0; j < s_.keys; ++j)
        if (seen(row % s_.queries, j)) dot += scaled_[row * s_.keys + j] * d[row * s_.keys + j];
      for (int64_t j = 0; j < s_.keys; ++j)
        d[row * s_.keys + j] = (d[row * s_.keys + j] - dot) / sums_[row];
    }
  }

  Map convolution_gradient(const Map& dy, const Map& x, const std::vector<double>& kernel,
                           const Extent& extent, bool of_result, std::vector<double>& to) const {
    if (extent.queries == 0) return dy;
    Map dx(dy.size(), 0.0);
    double* const sums = to.data() + b_ * static_cast<int64_t>(kernel.size());
    each_pair([&](int64_t h, int64_t i, int64_t j) {
      each_tap(extent, of_result, h, i, j, [&](int64_t tap, int64_t row, int64_t key) {
        sums[tap] += dy[at(h, i, j)] * x[at(h, row, key)];
        dx[at(h, row, key)] += kernel[tap] * dy[at(h, i, j)];
      });
    });
    return dx;
  }

  // From the gradient of the weights to that of the logits.
  void softmax_gradient(Map& d, const std::vector<double>& dlse, MixingOperands& to) const {
    for (int64_t h = 0; h < s_.heads; ++h) {
      for (int64_t i = 0; i < s_.queries; ++i) {
        const double lse = lse_[h * s_.queries + i];
        double dot = 0.0;
        for (int64_t j = 0; j < s_.keys; ++j) dot += weights_[at(h, i, j)] * d[at(h, i, j)];
        if (!dlse.empty()) dot -= dlse[(b_ * s_.heads + h) * s_.queries + i];
        for (int64_t j = 0; j < s_.keys; ++j)
          d[at(h, i, j)] = weights_[at(h, i, j)] * (d[at(h, i, j)] - dot);
        if (settings_.sink) to.sink[b_ * s_.heads + h] -= std::exp(x_.sink[h] - lse) * dot;
      }
    }
  }

  // To that of the mixed logits.
  void term_gradient(Map& d, MixingOperands& to) const {
    each_pair([&](int64_t h, int64_t i, int64_t j) {
      if (!seen(i, j)) return;
      double& ds = d[at(h, i, j)];
      const Terms t = terms_of(h, i, j);
      if (settings_.bias_count > 0)
        to.bias[b_ * s_.heads * settings_.bias_count + bias_of(h, i, j)] += ds;
      const int64_t columns = settings_.gated() ? settings_.gate_columns : 0;
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t query = (b_ * s_.queries + i) * columns + c,
                      key = (b_ * s_.keys + j) * columns + c;
        to.gate_query[query] += ds * t.by_z * x_.gate_key[key];
        to.gate_key[key] += ds * t.by_z * x_.gate_query[query];
      }
      ds *= t.by_mixed;
    });
  }

  void product_gradient(const Map& d, MixingOperands& to) const {
    const int64_t width = s_.head_dim;
    each_pair([&](int64_t h, int64_t i, int64_t j) {
      if (d[at(h, i, j)] == 0.0) return;
      const double cap = settings_.soft_cap, s = product(h, i, j);
      const double t = cap > 0.0 ? std::tanh(s / cap) : 0.0;
      const double ds = d[at(h, i, j)] * (1.0 - t * t);
      const int64_t q = query_at(h, i, width), k = key_at(h, j, width);
      for (int64_t c = 0; c < width; ++c) {
        to.q[q + c] += ds * scale_of(i) * x_.k[k + c];
        to.k[k + c] += ds * scale_of(i) * x_.q[q + c];
      }
      if (settings_.tau)
        to.tau[(b_ * s_.heads + h) * s_.queries + i] -= ds * s / x_.tau[b_ * s_.queries + i];
    });
  }

  const MixingSettings& settings_;
  const kernels::AttentionSizes& s_;
  const MixingOperands& x_;
  const int64_t b_;
  std::vector<int64_t> first_;  // row of each row's document
  std::vector<char> seen_;
  // Stages in order: soft-capped products, after the convolution, after the mix, with gate and
  // biases, softmax, after the convolution, divided by the sums of rows, after the mix.
  Map logits_, convolved_, mixed_, gated_, weights_, joined_, scaled_, final_;
  std::vector<double> lse_, sums_;  // [head][query]
  std::vector<char> divided_;
};

inline MixingOutputs mixing_outputs(const MixingSettings& settings,
                                    const MixingOperands& operands) {
  const kernels::AttentionSizes& s = settings.sizes;
  MixingOutputs outputs;
  outputs.out.resize(static_cast<size_t>(s.batch * s.heads * s.queries * s.value_dim));
  for (std::vector<double>* x : {&outputs.lse, &outputs.row_sums})
    x->resize(static_cast<size_t>(s.batch * s.heads * s.queries));
  for (int64_t b = 0; b < s.batch; ++b) MixingTruth(settings, operands, b).write(outputs);
  return outputs;
}

/// Gradients of sum(out dout) + sum(lse dlse) over rows that are not empty; dlse may be empty.
inline MixingOperands mixing_gradients(const MixingSettings& settings,
                                       const MixingOperands& operands,
                                       const std::vector<double>& dout,
                                       const std::vector<double>& dlse) {
  const kernels::AttentionSizes& s = settings.sizes;
  const size_t batch = static_cast<size_t>(s.batch), heads = static_cast<size_t>(s.heads);
  MixingOperands gradients;
  gradients.q.resize(operands.q.size());
  gradients.k.resize(operands.k.size());
  gradients.v.resize(operands.v.size());
  gradients.tau.resize(settings.tau ? batch * heads * static_cast<size_t>(s.queries) : 0);
  gradients.sink.resize(settings.sink ? batch * heads : 0);
  gradients.kernel_before.resize(batch * operands.kernel_before.size());
  gradients.kernel_after.resize(batch * operands.kernel_after.size());
  gradients.mix_before.resize(batch * operands.mix_before.size());
  gradients.mix_after.resize(batch * operands.mix_after.size());
  gradients.gate_query.resize(operands.gate_query.size());
  gradients.gate_key.resize(operands.gate_key.size());
  gradients.bias.resize(batch * operands.bias.size());
  for (int64_t b = 0; b < s.batch; ++b)
    MixingTruth(settings, operands, b).add_gradients(dout, dlse, gradients);
  return gradients;
}

}  // namespace fovea::testing
