// Attention as scalar loops in float64, written from the formulas of the specification: what the
// tensor code is compared with.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
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

/// One number per head, row and key.
struct ScalarMap {
  ScalarMap(int64_t heads, int64_t t, int64_t s)
      : rows(t), keys(s), numbers(static_cast<size_t>(heads * t * s), 0.0) {}
  double& operator()(int64_t h, int64_t i, int64_t j) {
    return numbers[static_cast<size_t>((h * rows + i) * keys + j)];
  }
  int64_t rows, keys;
  std::vector<double> numbers;
};

/// Spec 3.2 step 3 (c), with the pairs that `counts(i, r, x)` keeps for row i.
inline ScalarMap scalar_convolution(ScalarMap x, int64_t heads, const at::Tensor& kernel,
                                    const std::function<bool(int64_t, int64_t, int64_t)>& counts) {
  const int64_t cq = kernel.size(1), ck = kernel.size(2);
  const at::Tensor numbers = kernel.detach().contiguous();
  const double* const weight = numbers.const_data_ptr<double>();
  ScalarMap y(heads, x.rows, x.keys);
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < x.rows; ++i)
      for (int64_t j = 0; j < x.keys; ++j)
        for (int64_t a = 0; a < cq; ++a)
          for (int64_t b = 0; b < ck; ++b) {
            const int64_t r = i + a - (cq - 1), c = j + b - (ck - 1) / 2;
            if (r < 0 || c < 0 || c >= x.keys || !counts(i, r, c)) continue;
            y(h, i, j) += weight[(h * cq + a) * ck + b] * x(h, r, c);
          }
  return y;
}

/// y_o = sum_c x_c weight(group, c, o) inside groups of m heads.
inline ScalarMap scalar_mix(ScalarMap x, int64_t heads, int64_t m,
                            const std::function<double(int64_t, int64_t, int64_t)>& weight) {
  ScalarMap y(heads, x.rows, x.keys);
  for (int64_t o = 0; o < heads; ++o)
    for (int64_t c = o / m * m; c < o / m * m + m; ++c) {
      const double w = weight(o / m, c % m, o % m);
      for (int64_t i = 0; i < x.rows; ++i)
        for (int64_t j = 0; j < x.keys; ++j) y(o, i, j) += x(c, i, j) * w;
    }
  return y;
}

/// Spec 3.2 steps 10 and 11 on one output row.
inline void scalar_head_output(const AttentionSpec& spec, const AttentionTensors& tensors,
                               std::vector<double>& o) {
  const HeadOutputSpec& s = spec.head_output;
  const auto e = static_cast<int64_t>(o.size());
  if (s.norm == HeadOutputSpec::Norm::rms) {
    double squares = 0.0;
    for (const double x : o) squares += x * x;
    const double root = std::sqrt(squares / static_cast<double>(e) + s.norm_eps);
    for (int64_t c = 0; c < e; ++c) o[c] *= tensors.head_gain_e[c].item<double>() / root;
  }
  const double l = static_cast<double>(spec.depth);
  for (double& x : o) {
    if (s.depth_scale == HeadOutputSpec::DepthScale::lambda)
      x *= 1.0 - (0.8 - 0.6 * std::exp(-0.3 * l));
    if (s.depth_scale == HeadOutputSpec::DepthScale::inverse_sqrt) x /= std::sqrt(l + 1.0);
  }
  const std::vector<double> input = o;
  for (int64_t c = 0; c < e && s.gate != HeadOutputSpec::Gate::none; ++c) {
    const bool full = s.gate == HeadOutputSpec::Gate::full;
    double score = full ? tensors.gate_bias[c].item<double>() : tensors.gate_bias.item<double>();
    for (int64_t n = 0; n < e; ++n)
      score +=
          input[n] * (full ? tensors.gate_weight[c][n] : tensors.gate_weight[n]).item<double>();
    o[c] /= 1.0 + std::exp(-score);
  }
}

inline ScalarResult scalar_attention(const AttentionSpec& spec, const AttentionInputs& in,
                                     const AttentionContext& context = {});

/// Spec 1.2 and 1.4 by two maps: query heads 2h + m, key heads 2 (h / n_rep) + m.
inline ScalarResult scalar_differential(const AttentionSpec& spec, const AttentionInputs& in,
                                        const AttentionContext& context) {
  const int64_t heads = spec.heads / 2, e = spec.value_width();
  AttentionSpec inner = spec;
  inner.differential = false, inner.head_output = {};
  inner.heads = heads, inner.kv_heads = spec.kv_heads / 2, inner.value_dim = e;
  std::vector<ScalarResult> maps;
  for (int64_t m = 0; m < 2; ++m) {
    AttentionInputs half = in;
    half.q = in.q.slice(1, m, {}, 2), half.k = in.k.slice(1, m, {}, 2);
    if (half.tensors.bias_table.defined())
      half.tensors.bias_table = half.tensors.bias_table.slice(1, m, {}, 2);
    if (half.tensors.sink_logit_h.defined())
      half.tensors.sink_logit_h = half.tensors.sink_logit_h.slice(0, m, {}, 2);
    if (half.tensors.start_q_bhtd.defined())
      half.tensors.start_q_bhtd = half.tensors.start_q_bhtd.slice(1, m, {}, 2);
    maps.push_back(scalar_attention(inner, half, context));
  }
  double dots[2] = {0.0, 0.0};
  for (int64_t pair = 0; pair < 2; ++pair)
    for (int64_t c = 0; c < spec.head_dim; ++c)
      dots[pair] += in.tensors.lambda_4d[2 * pair][c].item<double>() *
                    in.tensors.lambda_4d[2 * pair + 1][c].item<double>();
  const double start = 0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(spec.depth));
  const double lambda = std::exp(dots[0]) - std::exp(dots[1]) + start;
  ScalarResult result{maps[0].out - lambda * maps[1].out,
                      at::stack({maps[0].lse, maps[1].lse}, 2).flatten(1, 2),
                      maps[0].weights - lambda * maps[1].weights};
  for (int64_t n = 0; n < in.q.size(0); ++n)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t row = 0; row < in.q.size(2); ++row) {
        std::vector<double> o;
        for (int64_t c = 0; c < e; ++c) o.push_back(result.out[n][h][row][c].item<double>());
        scalar_head_output(spec, in.tensors, o);
        for (int64_t c = 0; c < e; ++c) result.out[n][h][row][c] = o[c];
      }
  return result;
}

/// Positions and documents come from `context` where given (one row for the whole batch), else keys
/// stand at 0 ... s-1 of one document and the queries are the last t. `weights` are those of the
/// softmax for stages without mixing, else those that meet the values.
inline ScalarResult scalar_attention(const AttentionSpec& spec, const AttentionInputs& in,
                                     const AttentionContext& context) {
  if (spec.differential) return scalar_differential(spec, in, context);
  const int64_t b = in.q.size(0), t = in.q.size(2), s = in.k.size(2), e = spec.value_width(),
                heads = spec.heads;
  const auto number = [](const at::Tensor& x, int64_t n, int64_t otherwise) {
    return x.defined() ? x.reshape(-1)[n].item<int64_t>() : otherwise;
  };
  const auto query_position = [&](int64_t row) {
    return number(context.query_positions_bt, row, s - t + row);
  };
  const auto key_position = [&](int64_t col) { return number(context.key_positions_bs, col, col); };
  const auto document = [&](int64_t row) { return number(context.query_documents_bt, row, 0); };
  std::vector<bool> seen;
  for (int64_t row = 0; row < t; ++row)
    for (int64_t col = 0; col < s; ++col)
      seen.push_back(sees(spec.mask, query_position(row), document(row), key_position(col),
                          number(context.key_documents_bs, col, 0)));
  // Focus (spec 11.2): a query is the key s - t + row.
  const FocusSpec& focus = spec.focus;
  const auto local = [&](int64_t row, int64_t col) {
    return query_position(row) - key_position(col) < focus.window ||
           key_position(col) < focus.sinks;
  };
  const auto copied = [](const at::Tensor& x) { return x.defined() ? x.detach().contiguous() : x; };
  const at::Tensor members = copied(in.tensors.members_bs), groups = copied(in.tensors.groups_bsk);
  const auto meet = [&](int64_t n, int64_t row, int64_t col) {
    const int64_t* bits = members.const_data_ptr<int64_t>() + n * s;
    return (bits[s - t + row] & bits[col]) != 0;
  };
  const auto gated = [&](int64_t n, int64_t row, int64_t col, double logit) {
    if (!focus.reads_groups() || local(row, col)) return logit;
    const double* g = groups.const_data_ptr<double>() + n * s * focus.groups;
    double a = 0.0;
    for (int64_t k = 0; k < focus.groups; ++k)
      a += g[(s - t + row) * focus.groups + k] * g[col * focus.groups + k];
    const auto sigma = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
    switch (focus.gate) {
      case FocusSpec::Gate::mul:
        return logit * sigma(focus.strength * a);
      case FocusSpec::Gate::log:
        return logit + std::log(a + focus.epsilon);
      case FocusSpec::Gate::logsig:
        return logit +
               std::log(sigma(in.tensors.focus_strength.item<double>() * (a - focus.threshold)));
      case FocusSpec::Gate::identity:
        return logit + std::log(static_cast<double>(focus.groups) * a + focus.epsilon);
      default:
        return logit;
    }
  };
  int64_t batch_row = 0;
  const auto in_blocks = [&](int64_t row, int64_t col) {
    if (!spec.blocks.active()) return true;
    const int64_t query = query_position(row) / spec.blocks.size,
                  key = key_position(col) / spec.blocks.size;
    for (size_t n = 0; n + 1 < spec.blocks.pairs.size(); n += 2)
      if (spec.blocks.pairs[n] == query && spec.blocks.pairs[n + 1] == key) return true;
    return false;
  };
  // Longformer (spec 4.1).
  const LongformerSpec& longformer = spec.longformer;
  const auto global = [&](int64_t position) {
    bool found = position < longformer.globals;
    for (const int64_t p : longformer.global_positions) found |= p == position;
    return longformer.active() && found;
  };
  const auto in_pattern = [&](int64_t h, int64_t row, int64_t col) {
    const int64_t i = query_position(row), j = key_position(col);
    if (!longformer.active() || global(i) || global(j)) return true;
    const std::vector<int64_t>& all = longformer.dilation;
    const int64_t step = all.empty() ? 1 : all[all.size() == 1 ? 0 : static_cast<size_t>(h)];
    for (int64_t n = 0; n <= longformer.window; ++n)
      if (i - step * n == j) return true;
    return false;
  };
  const bool one_pattern = longformer.dilation.size() <= 1;
  // StreamingLLM (spec 4.6): start keys are read from the query's place in the cache.
  const StreamingSpec& streaming = spec.streaming;
  const auto is_start = [&](int64_t col) {
    return streaming.active() && key_position(col) < streaming.start;
  };
  const auto stays = [&](int64_t row, int64_t col) {
    return !streaming.active() || is_start(col) ||
           query_position(row) - key_position(col) < streaming.recent;
  };
  const auto distance_of = [&](int64_t row, int64_t col) {
    const int64_t i = query_position(row);
    return (is_start(col) ? std::min(i, streaming.start + streaming.recent - 1) : i) -
           key_position(col);
  };
  const auto visible = [&](int64_t row, int64_t col) {
    return seen[row * s + col] && in_blocks(row, col) && stays(row, col) &&
           (!one_pattern || in_pattern(0, row, col)) &&
           (focus.gate != FocusSpec::Gate::hard || local(row, col) || meet(batch_row, row, col));
  };
  // Routing (spec 4.3): fewer than `keep` keys of the cluster come before this one.
  const RoutingSpec& routing = spec.routing;
  const at::Tensor from = copied(in.tensors.query_routes_bht),
                   to = copied(in.tensors.key_routes_bhs);
  const auto routed = [&](int64_t h, int64_t row, int64_t col) {
    if (!in_pattern(h, row, col)) return false;
    if (!routing.active()) return true;
    const int64_t head = batch_row * heads + h;
    const int64_t own = from.const_data_ptr<int64_t>()[head * t + row];
    const int64_t* const keys = to.const_data_ptr<int64_t>() + head * s;
    const auto better = [&](int64_t a, int64_t b_) {
      if (routing.choice == RoutingSpec::Choice::recent) return key_position(a) > key_position(b_);
      const double x = in.tensors.key_nearness_bhs[batch_row][h][a].item<double>(),
                   y = in.tensors.key_nearness_bhs[batch_row][h][b_].item<double>();
      return x > y || (x == y && a > b_);
    };
    int64_t before = 0;
    for (int64_t other = 0; other < s; ++other)
      before += keys[other] == own && visible(row, other) && better(other, col) ? 1 : 0;
    return keys[col] == own && before < routing.keep;
  };
  ScalarResult result{at::zeros({b, heads, t, e}, at::kDouble),
                      at::zeros({b, heads, t}, at::kDouble),
                      at::zeros({b, heads, t, s}, at::kDouble)};
  // KV shifting: rows of the token before, in the same document.
  const auto shifted = [&](const at::Tensor& x, const at::Tensor& weight) {
    if (!weight.defined()) return x.detach();
    const auto follows = [&](int64_t col) {
      return col > 0 && key_position(col) == key_position(col - 1) + 1 &&
             number(context.key_documents_bs, col, 0) ==
                 number(context.key_documents_bs, col - 1, 0);
    };
    at::Tensor y = at::zeros_like(x.detach());
    for (int64_t g = 0; g < x.size(1); ++g)
      for (int64_t col = 0; col < s; ++col) {
        const double now = weight[g][0].item<double>(), before = weight[g][1].item<double>();
        for (int64_t n = 0; n < b; ++n) {
          y[n][g][col] = now * x.detach()[n][g][col];
          if (follows(col)) y[n][g][col] += before * x.detach()[n][g][col - 1];
        }
      }
    return y;
  };
  const at::Tensor values[] = {in.q.detach(), shifted(in.k, in.tensors.key_shift_g2),
                               shifted(in.v, in.tensors.value_shift_g2)};
  const auto q = values[0].accessor<double, 4>();
  const auto k = values[1].accessor<double, 4>();
  const auto v = values[2].accessor<double, 4>();
  // Performer (spec 4.2): the logarithm of phi(q) . phi(k), whose softmax are its weights.
  const at::Tensor directions = copied(in.tensors.features_md);
  const auto with_features = [&](int64_t n, int64_t h, int64_t row, int64_t col) {
    const int64_t d = spec.head_dim, m = spec.performer.features;
    const double root = std::pow(static_cast<double>(d), 0.25);
    const double scale =
        spec.temperature.kind == TemperatureSpec::Kind::learned
            ? 1.0 / in.tensors.tau_bt[n][row].item<double>()
            : (spec.scale > 0.0 ? spec.scale : 1.0 / (root * root)) / spec.temperature.value;
    double sum = 0.0;
    for (int64_t r = 0; r < m; ++r) {
      double exponent = 0.0;
      for (int64_t c = 0; c < d; ++c) {
        const double w = directions.const_data_ptr<double>()[r * d + c],
                     x = q[n][h][row][c] * scale * root,
                     y = k[n][h / (heads / spec.kv_heads)][col][c] / root;
        exponent += w * (x + y) - (x * x + y * y) / 2.0;
      }
      sum += std::exp(exponent);
    }
    return std::log(sum / static_cast<double>(m));
  };
  // Of rows and keys with queries, keys and values of their own.
  const auto or_own = [](const at::Tensor& own, const at::Tensor& plain) {
    return own.defined() ? own.detach() : plain;
  };
  const at::Tensor others[] = {
      or_own(in.tensors.start_q_bhtd, values[0]), or_own(in.tensors.global_q_bhtd, values[0]),
      or_own(in.tensors.global_k_bgsd, values[1]), or_own(in.tensors.global_v_bgse, values[2])};
  const auto start_q = others[0].accessor<double, 4>(), global_q = others[1].accessor<double, 4>(),
             global_k = others[2].accessor<double, 4>(), global_v = others[3].accessor<double, 4>();
  const MultiTokenSpec& tokens = spec.multi_token;
  const HeadMixSpec& mix = spec.head_mix;
  for (int64_t n = 0; n < b; ++n) {
    batch_row = n;
    ScalarMap map(heads, t, s);
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t row = 0; row < t; ++row)
        for (int64_t col = 0; col < s; ++col) {
          double& logit = map(h, row, col);
          const bool of_global = global(query_position(row));
          for (int64_t c = 0; c < spec.head_dim; ++c) {
            const int64_t g = h / (heads / spec.kv_heads);
            logit += of_global       ? global_q[n][h][row][c] * global_k[n][g][col][c]
                     : is_start(col) ? start_q[n][h][row][c] * k[n][g][col][c]
                                     : q[n][h][row][c] * k[n][g][col][c];
          }
          if (spec.temperature.kind == TemperatureSpec::Kind::learned) {
            logit /= in.tensors.tau_bt[n][row].item<double>();
          } else {
            logit *= (spec.scale > 0.0 ? spec.scale
                                       : 1.0 / std::sqrt(static_cast<double>(spec.head_dim))) /
                     spec.temperature.value;
          }
          if (spec.performer.active()) logit = with_features(n, h, row, col);
          if (spec.soft_cap > 0.0) logit = spec.soft_cap * std::tanh(logit / spec.soft_cap);
        }
    if (tokens.before.active()) {
      map = scalar_convolution(map, heads, in.tensors.kernel_before_hqk,
                               [&](int64_t i, int64_t r, int64_t x) {
                                 const bool eq5 = tokens.equation == MultiTokenSpec::Equation::eq5;
                                 return document(r) == document(i) && visible(eq5 ? r : i, x);
                               });
    }
    if (mix.before != HeadMixSpec::Kind::none) {
      map = scalar_mix(map, heads, mix.width(mix.before, heads),
                       [&](int64_t group, int64_t c, int64_t o) {
                         return in.tensors.mix_before_noi[group][o][c].item<double>();
                       });
    }
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t row = 0; row < t; ++row) {
        double total = spec.sink_logit ? std::exp(in.tensors.sink_logit_h[h].item<double>()) : 0.0;
        for (int64_t col = 0; col < s; ++col) {
          double& logit = map(h, row, col);
          if (!visible(row, col) || !routed(h, row, col)) {
            logit = 0.0;
            continue;
          }
          logit = gated(n, row, col, logit);
          const int64_t distance = distance_of(row, col);
          if (spec.bias.kind == BiasSpec::Kind::alibi)
            logit -= alibi_slope(heads, h) * static_cast<double>(distance);
          if (spec.bias.kind == BiasSpec::Kind::t5)
            logit +=
                in.tensors
                    .bias_table[t5_bucket(distance, spec.bias.buckets, spec.bias.max_distance)][h]
                    .item<double>();
          total += logit = std::exp(logit);
        }
        result.lse[n][h][row] = std::log(total);
        for (int64_t col = 0; col < s; ++col) map(h, row, col) /= total > 0.0 ? total : 1.0;
      }
    if (tokens.after.active()) {
      map = scalar_convolution(map, heads, in.tensors.kernel_after_hqk,
                               [&](int64_t i, int64_t r, int64_t x) {
                                 return document(r) == document(i) && visible(r, x);
                               });
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t row = 0; row < t; ++row) {
          double sum = 0.0;
          for (int64_t col = 0; col < s; ++col)
            sum += map(h, row, col) *= visible(row, col) ? 1.0 : 0.0;
          for (int64_t col = 0; col < s && tokens.renormalise && std::abs(sum) > 1e-6; ++col)
            map(h, row, col) /= sum;
        }
    }
    if (mix.after != HeadMixSpec::Kind::none) {
      map = scalar_mix(map, heads, mix.width(mix.after, heads),
                       [&](int64_t group, int64_t c, int64_t o) {
                         return in.tensors.mix_after_nio[group][c][o].item<double>();
                       });
    }
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t row = 0; row < t; ++row) {
        std::vector<double> o(static_cast<size_t>(e), 0.0);
        for (int64_t col = 0; col < s; ++col) {
          result.weights[n][h][row][col] = map(h, row, col);
          for (int64_t c = 0; c < e; ++c)
            o[c] += map(h, row, col) * (global(query_position(row))
                                            ? global_v
                                            : v)[n][h / (heads / spec.kv_heads)][col][c];
        }
        scalar_head_output(spec, in.tensors, o);
        for (int64_t c = 0; c < e; ++c) result.out[n][h][row][c] = o[c];
      }
  }
  return result;
}

}  // namespace fovea::testing
