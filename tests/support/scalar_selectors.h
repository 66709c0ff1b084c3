// SparQ and MagicPIG as scalar loops in float64, written from the formulas of the specification
// (4.4, 4.5): what the tensor code is compared with.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/support/attention_inputs.h"

namespace fovea::testing {

struct SelectedTruth {
  at::Tensor out, lse, weights, alpha;
};

/// Rows of a text in `documents` (lengths; empty: one), the queries being its last t tokens.
class ScalarSelector {
 public:
  ScalarSelector(const AttentionSpec& spec, const AttentionInputs& in,
                 const std::vector<int64_t>& documents = {})
      : spec_(spec),
        q_(in.q.detach().contiguous()),
        k_(in.k.detach().contiguous()),
        v_(in.v.detach().contiguous()),
        tau_(in.tensors.tau_bt) {
    const int64_t s = k_.size(2);
    for (const int64_t length : documents.empty() ? std::vector{s} : documents)
      for (int64_t n = 0; n < length; ++n) first_.push_back(std::ssize(first_) - n);
    result_ = {at::zeros({b(), h(), t(), v_.size(3)}, at::kDouble),
               at::zeros({b(), h(), t()}, at::kDouble), at::zeros({b(), h(), t(), s}, at::kDouble),
               at::ones({b(), h(), t()}, at::kDouble)};
  }

  SelectedTruth sparq() {
    each_group([&](int64_t n, int64_t g, int64_t row, int64_t i) { sparq_row(n, g, row, i); });
    return result_;
  }

  /// `prompt` < 0: of every row, the tokens before it. `directions`: [tables bits, d].
  SelectedTruth magic_pig(const at::Tensor& directions, int64_t prompt = -1) {
    directions_ = directions.contiguous();
    each_group([&](int64_t n, int64_t g, int64_t row, int64_t i) {
      for (int64_t h = g * repeats(); h < (g + 1) * repeats(); ++h)
        magic_pig_row(n, g, h, row, i, prompt);
    });
    return result_;
  }

 private:
  int64_t b() const { return q_.size(0); }
  int64_t h() const { return q_.size(1); }
  int64_t t() const { return q_.size(2); }
  int64_t repeats() const { return h() / spec_.kv_heads; }
  double q(int64_t n, int64_t h, int64_t row, int64_t c) const {
    return q_.const_data_ptr<double>()[((n * q_.size(1) + h) * t() + row) * q_.size(3) + c];
  }
  double k(int64_t n, int64_t g, int64_t j, int64_t c) const {
    return k_.const_data_ptr<double>()[((n * k_.size(1) + g) * k_.size(2) + j) * k_.size(3) + c];
  }
  double v(int64_t n, int64_t g, int64_t j, int64_t c) const {
    return v_.const_data_ptr<double>()[((n * v_.size(1) + g) * v_.size(2) + j) * v_.size(3) + c];
  }
  double dot(int64_t n, int64_t h, int64_t g, int64_t row, int64_t j) const {
    double sum = 0.0;
    for (int64_t c = 0; c < q_.size(3); ++c) sum += q(n, h, row, c) * k(n, g, j, c);
    return sum;
  }
  double scale(int64_t n, int64_t row) const {
    return tau_.defined() ? 1.0 / tau_[n][row].item<double>() : spec_.logit_scale();
  }

  template <class F>
  void each_group(const F& row_of) {
    for (int64_t n = 0; n < b(); ++n)
      for (int64_t g = 0; g < spec_.kv_heads; ++g)
        for (int64_t row = 0; row < t(); ++row) row_of(n, g, row, k_.size(2) - t() + row);
  }

  // Softmax of logits over keys first ... first + size of a row into weights, log-sum-exp, output.
  void finish(int64_t n, int64_t h, int64_t g, int64_t row, int64_t first,
              const std::vector<double>& logits, const std::vector<bool>& chosen, double alpha) {
    double total = 0.0;
    for (size_t j = 0; j < logits.size(); ++j) total += chosen[j] ? std::exp(logits[j]) : 0.0;
    result_.lse[n][h][row] = std::log(total);
    result_.alpha[n][h][row] = alpha;
    for (size_t j = 0; j < logits.size(); ++j) {
      const double weight = (chosen[j] ? alpha * std::exp(logits[j]) / total : 0.0) +
                            (1.0 - alpha) / static_cast<double>(logits.size());
      const int64_t key = first + static_cast<int64_t>(j);
      result_.weights[n][h][row][key] = weight;
      for (int64_t c = 0; c < v_.size(3); ++c)
        result_.out
            .mutable_data_ptr<double>()[((n * this->h() + h) * t() + row) * v_.size(3) + c] +=
            weight * v(n, g, key, c);
    }
  }

  void sparq_row(int64_t n, int64_t g, int64_t row, int64_t i) {
    const int64_t d = q_.size(3), first = first_[i], count = i - first + 1;
    std::vector<double> size(static_cast<size_t>(d), 0.0);
    for (int64_t c = 0; c < d; ++c)
      for (int64_t h = g * repeats(); h < (g + 1) * repeats(); ++h)
        size[c] += std::abs(q(n, h, row, c));
    std::vector<int64_t> order(static_cast<size_t>(d));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int64_t a, int64_t c) { return size[a] > size[c]; });
    order.resize(static_cast<size_t>(spec_.sparq.components));
    std::vector<std::vector<double>> approximate;
    std::vector<double> score(static_cast<size_t>(count), 0.0);
    for (int64_t h = g * repeats(); h < (g + 1) * repeats(); ++h) {
      double part = 0.0, whole = 0.0, total = 0.0;
      for (int64_t c = 0; c < d; ++c) whole += std::abs(q(n, h, row, c));
      for (const int64_t c : order) part += std::abs(q(n, h, row, c));
      std::vector<double> weight;
      for (int64_t j = first; j <= i; ++j) {
        double logit = 0.0;
        for (const int64_t c : order) logit += q(n, h, row, c) * k(n, g, j, c);
        weight.push_back(std::exp(logit * scale(n, row) / std::sqrt(part / whole)));
        total += weight.back();
      }
      for (size_t j = 0; j < weight.size(); ++j) score[j] += weight[j] /= total;
      approximate.push_back(weight);
    }
    // The row's own key, the last l before it, then the best.
    std::vector<bool> chosen(static_cast<size_t>(count), false);
    const int64_t recent = spec_.sparq.recent < 0 ? spec_.sparq.keys / 4 : spec_.sparq.recent;
    const auto number_chosen = [&] { return std::ranges::count(chosen, true); };
    for (int64_t j = count - 1; j >= 0 && j >= count - 1 - recent; --j) chosen[j] = true;
    while (number_chosen() < std::min(spec_.sparq.keys + 1, count)) {
      int64_t best = -1;
      for (int64_t j = 0; j < count; ++j)
        if (!chosen[j] && (best < 0 || score[j] > score[best])) best = j;
      chosen[best] = true;
    }
    for (int64_t h = g * repeats(); h < (g + 1) * repeats(); ++h) {
      double alpha = 0.0;
      std::vector<double> logits;
      for (int64_t j = 0; j < count; ++j) {
        if (chosen[j]) alpha += approximate[static_cast<size_t>(h - g * repeats())][j];
        logits.push_back(dot(n, h, g, row, first + j) * scale(n, row));
      }
      finish(n, h, g, row, first, logits, chosen, spec_.sparq.reallocate ? alpha : 1.0);
    }
  }

  void magic_pig_row(int64_t n, int64_t g, int64_t h, int64_t row, int64_t i, int64_t prompt) {
    const MagicPigSpec& m = spec_.magic_pig;
    const int64_t d = q_.size(3), first = first_[i], count = i - first + 1;
    int64_t end = (prompt < 0 ? count - 1 : std::min(prompt, count - 1)) - m.recent;
    if (end - m.start < 2) end = m.start;  // one key alone has no direction beside the mean
    std::vector<double> centre(static_cast<size_t>(d), 0.0);
    for (int64_t j = m.start; j < end; ++j)
      for (int64_t c = 0; c < d; ++c)
        centre[c] += k(n, g, first + j, c) / static_cast<double>(end - m.start);
    std::vector<bool> chosen;
    std::vector<double> logits;
    for (int64_t j = 0; j < count; ++j) {
      logits.push_back(dot(n, h, g, row, first + j) * scale(n, row));
      chosen.push_back(true);
      if (j < m.start || j >= end) continue;
      double product = 0.0, q_square = 0.0, k_square = 0.0;
      for (int64_t c = 0; c < d; ++c) {
        const double x = q(n, h, row, c), y = k(n, g, first + j, c) - centre[c];
        product += x * y, q_square += x * x, k_square += y * y;
      }
      const double p = 1.0 - std::acos(product / std::sqrt(q_square * k_square)) / M_PI;
      const double one = std::pow(p, m.bits), l = static_cast<double>(m.tables);
      const double u = 1.0 - std::pow(1.0 - one, l) - l * one * std::pow(1.0 - one, l - 1.0);
      chosen.back() = collisions(n, g, h, row, first + j, centre) >= 2;
      logits.back() -= std::log(u + 1e-4);
    }
    finish(n, h, g, row, first, logits, chosen, 1.0);
  }

  int64_t collisions(int64_t n, int64_t g, int64_t h, int64_t row, int64_t key,
                     const std::vector<double>& centre) const {
    const MagicPigSpec& m = spec_.magic_pig;
    const double* const all = directions_.const_data_ptr<double>();
    int64_t tables = 0;
    for (int64_t table = 0; table < m.tables; ++table) {
      bool same = true;
      for (int64_t bit = 0; bit < m.bits && same; ++bit) {
        const double* const w = all + (table * m.bits + bit) * q_.size(3);
        double of_query = 0.0, of_key = 0.0;
        for (int64_t c = 0; c < q_.size(3); ++c) {
          of_query += w[c] * q(n, h, row, c);
          of_key += w[c] * (k(n, g, key, c) - centre[c]);
        }
        same = (of_query > 0.0) == (of_key > 0.0);
      }
      tables += same ? 1 : 0;
    }
    return tables;
  }

  AttentionSpec spec_;
  at::Tensor q_, k_, v_, tau_, directions_;
  std::vector<int64_t> first_;  // of every token, the first token of its document
  SelectedTruth result_;
};

}  // namespace fovea::testing
