// Attention as scalar loops in float64, written from the formulas of the specification: what the
// tensor code is compared with.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/attention_inputs.h"

namespace fovea::testing {

/// Spec 4.7, 7.5, 9.10: may the query at position i of document `query_document` see the key at
/// position j of `key_document`?
inline bool sees(const MaskRule& m, int64_t i, int64_t query_document, int64_t j,
                 int64_t key_document) {
  if (query_document != key_document || (m.causal && j > i)) return false;
  const bool sink = j <= i && j < m.sinks;
  switch (m.sparsity) {
    case MaskRule::Sparsity::strided:
      return sink || std::abs(i - j) < m.window || std::abs(i - j) % m.stride == 0;
    case MaskRule::Sparsity::fixed:
      return sink || i / m.block == j / m.block || j % m.block >= m.block - m.summary;
    case MaskRule::Sparsity::full:
      return sink || m.window == 0 || std::abs(i - j) < m.window;
  }
  return false;
}

/// Spec 6.4.
inline double alibi_slope(int64_t heads, int64_t h) {
  int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  if (h < power)
    return std::pow(2.0, -8.0 * static_cast<double>(h + 1) / static_cast<double>(power));
  return std::pow(2.0,
                  -8.0 * static_cast<double>(2 * (h - power) + 1) / static_cast<double>(2 * power));
}

/// Spec 6.3, causal.
inline int64_t t5_bucket(int64_t distance, int64_t buckets, int64_t max_distance) {
  const int64_t n = std::max<int64_t>(distance, 0), exact = buckets / 2;
  if (n < exact) return n;
  const double share = std::log(static_cast<double>(n) / static_cast<double>(exact)) /
                       std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  return std::min(
      exact + static_cast<int64_t>(std::floor(static_cast<double>(buckets - exact) * share)),
      buckets - 1);
}

struct ScalarResult {
  at::Tensor out, lse, weights;
};

/// Positions and documents come from `context` where given (one row for the whole batch), else keys
/// stand at 0 ... s-1 of one document and the queries are the last t.
inline ScalarResult scalar_attention(const AttentionSpec& spec, const AttentionInputs& in,
                                     const AttentionContext& context = {}) {
  const int64_t b = in.q.size(0), t = in.q.size(2), s = in.k.size(2), e = spec.value_width();
  const auto number = [](const at::Tensor& x, int64_t n, int64_t otherwise) {
    return x.defined() ? x.reshape(-1)[n].item<int64_t>() : otherwise;
  };
  ScalarResult result{at::zeros({b, spec.heads, t, e}, at::kDouble),
                      at::zeros({b, spec.heads, t}, at::kDouble),
                      at::zeros({b, spec.heads, t, s}, at::kDouble)};
  const at::Tensor values[] = {in.q.detach(), in.k.detach(), in.v.detach()};
  const auto q = values[0].accessor<double, 4>();
  const auto k = values[1].accessor<double, 4>();
  const auto v = values[2].accessor<double, 4>();
  auto out = result.out.accessor<double, 4>();
  for (int64_t n = 0; n < b; ++n)
    for (int64_t h = 0; h < spec.heads; ++h)
      for (int64_t row = 0; row < t; ++row) {
        const int64_t i = number(context.query_positions_bt, row, s - t + row),
                      g = h / (spec.heads / spec.kv_heads);
        std::vector<double> term(static_cast<size_t>(s), 0.0);
        double total = spec.sink_logit ? std::exp(in.tensors.sink_logit_h[h].item<double>()) : 0.0;
        for (int64_t col = 0; col < s; ++col) {
          const int64_t j = number(context.key_positions_bs, col, col);
          if (!sees(spec.mask, i, number(context.query_documents_bt, row, 0), j,
                    number(context.key_documents_bs, col, 0)))
            continue;
          double logit = 0.0;
          for (int64_t c = 0; c < spec.head_dim; ++c) logit += q[n][h][row][c] * k[n][g][col][c];
          if (spec.temperature.kind == TemperatureSpec::Kind::learned) {
            logit /= in.tensors.tau_bt[n][row].item<double>();
          } else {
            logit *= (spec.scale > 0.0 ? spec.scale
                                       : 1.0 / std::sqrt(static_cast<double>(spec.head_dim))) /
                     spec.temperature.value;
          }
          if (spec.soft_cap > 0.0) logit = spec.soft_cap * std::tanh(logit / spec.soft_cap);
          if (spec.bias.kind == BiasSpec::Kind::alibi)
            logit -= alibi_slope(spec.heads, h) * static_cast<double>(i - j);
          if (spec.bias.kind == BiasSpec::Kind::t5)
            logit += in.tensors
                         .bias_table[t5_bucket(i - j, spec.bias.buckets, spec.bias.max_distance)][h]
                         .item<double>();
          total += term[col] = std::exp(logit);
        }
        result.lse[n][h][row] = std::log(total);
        for (int64_t col = 0; col < s; ++col) {
          if (term[col] == 0.0) continue;
          result.weights[n][h][row][col] = term[col] / total;
          for (int64_t c = 0; c < e; ++c) out[n][h][row][c] += term[col] / total * v[n][g][col][c];
        }
      }
  return result;
}

}  // namespace fovea::testing
