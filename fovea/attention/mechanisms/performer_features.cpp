// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/performer_features.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fovea/attention/call.h"
#include "fovea/attention/isolation.h"
#include "fovea/attention/pipeline.h"
#include "fovea/base/files.h"
#include "fovea/base/rng.h"

namespace fovea {
namespace {

double dot(const double* x, const double* y, int64_t n) {
  double sum = 0.0;
  for (int64_t c = 0; c < n; ++c) sum += x[c] * y[c];
  return sum;
}

double length(const double* x, int64_t n) { return std::sqrt(dot(x, x, n)); }

// Rows of Gaussian vectors, each made orthogonal to those before it, twice: rounding of the first
// time is taken out by the second.
void orthonormal_rows(Rng& rng, double* rows, int64_t count, int64_t width) {
  for (int64_t r = 0; r < count; ++r) {
    double* const row = rows + r * width;
    for (int64_t c = 0; c < width; ++c) row[c] = rng.normal();
    for (int round = 0; round < 2; ++round) {
      for (int64_t before = 0; before < r; ++before) {
        const double* const other = rows + before * width;
        const double along = dot(row, other, width);
        for (int64_t c = 0; c < width; ++c) row[c] -= along * other[c];
      }
    }
    const double norm = length(row, width);
    for (int64_t c = 0; c < width; ++c) row[c] /= norm;
  }
}

double row_length(const PerformerSpec& spec, Rng& rng, int64_t width) {
  if (spec.scaling == PerformerSpec::Scaling::root) return std::sqrt(static_cast<double>(width));
  std::vector<double> gaussian(static_cast<size_t>(width));
  for (double& x : gaussian) x = rng.normal();
  return length(gaussian.data(), width);
}

uint64_t fingerprint_of(const at::Tensor& x) {
  const at::Tensor rows = x.cpu().to(at::kFloat).contiguous();
  return fingerprint({static_cast<const char*>(rows.const_data_ptr()), rows.nbytes()});
}

}  // namespace

at::Tensor draw_features(const PerformerSpec& spec, int64_t head_dim, uint64_t seed) {
  Rng rng(seed);
  const at::Tensor features = at::empty({spec.features, head_dim}, at::kFloat);
  float* const to = features.mutable_data_ptr<float>();
  std::vector<double> block(static_cast<size_t>(head_dim * head_dim));
  for (int64_t first = 0; first < spec.features; first += head_dim) {
    const int64_t count = std::min(head_dim, spec.features - first);
    orthonormal_rows(rng, block.data(), count, head_dim);
    for (int64_t r = 0; r < count; ++r) {
      const double by = row_length(spec, rng, head_dim);
      for (int64_t c = 0; c < head_dim; ++c)
        to[(first + r) * head_dim + c] =
            static_cast<float>(by * block[static_cast<size_t>(r * head_dim + c)]);
    }
  }
  return features;
}

at::Tensor redraw_features(const PerformerSpec& spec, const at::Tensor& features) {
  return draw_features(spec, features.size(1), mix_seed(fingerprint_of(features), 1));
}

PerformerFactors performer_factors(const AttentionCall& call) {
  const double root = std::pow(static_cast<double>(call.spec.head_dim), 0.25);
  const bool learned = call.spec.temperature.kind == TemperatureSpec::Kind::learned;
  return {.query = learned ? root : root * call.spec.logit_scale(), .key = 1.0 / root};
}

namespace {

// w . x' and |x'|^2 / 2 of rows.
struct Projected {
  at::Tensor products;      // [b, heads, n, m]
  at::Tensor half_squares;  // [b, heads, n, 1]

  Projected(const at::Tensor& x, const at::Tensor& features)
      : products(at::matmul(x, features.to(x.scalar_type()).t())),
        half_squares(0.5 * x.square().sum(-1, true)) {}
};

// e^(products - half_squares - stabiliser) + epsilon. The stabiliser is a constant of the gradient.
at::Tensor features_of(const Projected& x, const at::Tensor& stabiliser, double epsilon) {
  return at::exp(x.products - x.half_squares - stabiliser) + epsilon;
}

// phi(q) . phi(k)^T of the query heads of each key head.
at::Tensor feature_products(const at::Tensor& q, const at::Tensor& k) {
  const int64_t b = q.size(0), h = q.size(1), t = q.size(2), g = k.size(1);
  return pair_scores(q.reshape({b, g, h / g * t, q.size(3)}), k).reshape({b, h, t, k.size(2)});
}

// The logarithm, with gradient 0 where it is -inf or NaN.
at::Tensor safe_log(const at::Tensor& x) {
  const at::Tensor positive = x.detach() > 0.0, bad = x.detach().isnan();
  return x.masked_fill(positive.logical_not(), 1.0)
      .log()
      .masked_fill(positive.logical_not(), -kInfinity)
      .masked_fill(bad, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

at::Tensor performer_logits(const AttentionCall& call, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& tau_bt) {
  const PerformerSpec& spec = call.spec.performer;
  if (!spec.active()) return {};
  const PerformerFactors factors = performer_factors(call);
  at::Tensor scaled = q * factors.query;
  if (tau_bt.defined())
    scaled = scaled / tau_bt.to(q.scalar_type()).reshape({q.size(0), 1, q.size(2), 1});
  const at::Tensor& w = call.tensors.features_md;
  const Projected queries(scaled, w), keys(k * factors.key, w);
  const double count = std::log(static_cast<double>(spec.features));
  if (spec.epsilon > 0.0) {
    const at::Tensor of_queries = at::amax(queries.products.detach(), -1, true);
    const at::Tensor all = Projected(call.k.detach().to(q.scalar_type()) * factors.key, w).products;
    const at::Tensor of_keys = at::amax(all, {2, 3}, true);
    return safe_log(feature_products(features_of(queries, of_queries, spec.epsilon),
                                     features_of(keys, of_keys, spec.epsilon))) -
           count;
  }
  // Each row has a stabiliser of its own: a pair knows of no other token.
  const auto largest = [](const Projected& x) {
    return at::amax((x.products - x.half_squares).detach(), -1, true);
  };
  const at::Tensor of_queries = largest(queries), of_keys = largest(keys);
  const at::Tensor stabilisers =
      of_queries + of_keys.repeat_interleave(q.size(1) / k.size(1), 1).transpose(2, 3);
  return safe_log(feature_products(features_of(queries, of_queries, 0.0),
                                   features_of(keys, of_keys, 0.0))) +
         stabilisers - count;
}

}  // namespace fovea
