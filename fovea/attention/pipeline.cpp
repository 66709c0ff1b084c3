// The stages of the reference.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/pipeline.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "fovea/attention/isolation.h"
#include "fovea/attention/mechanisms/own_stage.h"
#include "fovea/base/error.h"
#include "fovea/kernels/common/dropout.h"

namespace fovea {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string shape_text(const at::Tensor& x) {
  return x.defined() ? fmt::format("[{}]", fmt::join(x.sizes(), ", ")) : "none";
}

// Every call of attention() comes through these checks: text is made only for an error.
void check_tensor(const at::Tensor& x, at::IntArrayRef sizes, std::string_view name) {
  if (x.defined() && x.sizes() == sizes) return;
  fail<ShapeError>("attention", "{} must be [{}]; got {}", name, fmt::join(sizes, ", "),
                   shape_text(x));
}

// A stage tensor: its sizes where the spec wants it, absent elsewhere. `setting` formats `values`.
template <class... Values>
void check_stage(bool wanted, const at::Tensor& x, at::IntArrayRef sizes, std::string_view name,
                 fmt::format_string<const Values&...> setting, const Values&... values) {
  if (wanted ? x.defined() && x.sizes() == sizes : !x.defined()) return;
  const std::string set = fmt::format(setting, values...);
  require<ShapeError>(wanted, "attention", "{} must be absent with {}; got {}", name, set,
                      shape_text(x));
  require<ShapeError>(x.defined(), "attention",
                      "{} must be given, because the spec has {}; got none", name, set);
  check_tensor(x, sizes, name);
}

void check_focus_tensors(const FocusSpec& focus, const AttentionTensors& x, int64_t b, int64_t t,
                         int64_t s) {
  require<ShapeError>(
      !focus.active() || t <= s, "attention",
      "focus needs queries that are the last of the keys; got {} queries and {} keys", t, s);
  const std::string_view gate = enum_name(focus.gate);
  check_stage(focus.reads_groups(), x.groups_bsk, {b, s, focus.groups}, "groups", "focus.gate {}",
              gate);
  check_stage(focus.reads_members(), x.members_bs, {b, s}, "members", "focus.gate {}", gate);
  check_stage(focus.reads_strength(), x.focus_strength, {}, "focus_strength", "focus.gate {}",
              gate);
  require<ShapeError>(!x.members_bs.defined() || x.members_bs.scalar_type() == at::kLong,
                      "attention", "members must be int64; got {}",
                      x.members_bs.defined() ? at::toString(x.members_bs.scalar_type()) : "none");
}

void check_routing_tensors(const AttentionSpec& spec, const AttentionTensors& x, int64_t b,
                           int64_t t, int64_t s) {
  const RoutingSpec& routing = spec.routing;
  constexpr const char* setting = "routing.clusters {}";
  const bool on = routing.active();
  check_stage(on, x.query_routes_bht, {b, spec.heads, t}, "query_routes", setting,
              routing.clusters);
  check_stage(on, x.key_routes_bhs, {b, spec.heads, s}, "key_routes", setting, routing.clusters);
  check_stage(routing.reads_nearness(), x.key_nearness_bhs, {b, spec.heads, s}, "key_nearness",
              "routing.choice {}", enum_name(routing.choice));
  for (const at::Tensor* routes : {&x.query_routes_bht, &x.key_routes_bhs}) {
    require<ShapeError>(!routes->defined() || routes->scalar_type() == at::kLong, "attention",
                        "routes must be int64; got {}",
                        routes->defined() ? at::toString(routes->scalar_type()) : "none");
  }
}

void check_stage_tensors(const AttentionSpec& spec, const AttentionTensors& x, int64_t b,
                         int64_t t) {
  check_stage(spec.temperature.kind == TemperatureSpec::Kind::learned, x.tau_bt, {b, t}, "tau",
              "temperature.kind {}", enum_name(spec.temperature.kind));
  check_stage(spec.bias.kind == BiasSpec::Kind::t5, x.bias_table, {spec.bias.buckets, spec.heads},
              "bias_table", "bias.kind {}", enum_name(spec.bias.kind));
  check_stage(spec.sink_logit, x.sink_logit_h, {spec.heads}, "sink_logit", "sink_logit {}",
              spec.sink_logit);
  for (const auto& [extent, kernel, name] :
       {std::tuple{&spec.multi_token.before, &x.kernel_before_hqk, "kernel_before"},
        std::tuple{&spec.multi_token.after, &x.kernel_after_hqk, "kernel_after"}}) {
    check_stage(extent->active(), *kernel, {spec.heads, extent->queries, extent->keys}, name,
                "a {} x {} convolution", extent->queries, extent->keys);
  }
  for (const auto& [kind, mix, name] :
       {std::tuple{spec.head_mix.before, &x.mix_before_noi, "mix_before"},
        std::tuple{spec.head_mix.after, &x.mix_after_nio, "mix_after"}}) {
    const int64_t m = spec.head_mix.width(kind, spec.heads);
    check_stage(m > 0, *mix, {m > 0 ? spec.heads / m : 0, m, m}, name, "head mixing {}",
                enum_name(kind));
  }
  const std::vector<int64_t> own = own_weight_shape(spec);
  check_stage(!own.empty(), x.own, own, "own", "own.name '{}'", spec.own.name);
  const HeadOutputSpec& o = spec.head_output;
  const int64_t e = spec.value_width();
  const bool full = o.gate == HeadOutputSpec::Gate::full,
             gated = o.gate != HeadOutputSpec::Gate::none;
  check_stage(o.norm == HeadOutputSpec::Norm::rms, x.head_gain_e, {e}, "head_gain",
              "head_output.norm {}", enum_name(o.norm));
  const std::string_view gate = enum_name(o.gate);
  check_stage(gated, x.gate_weight, full ? std::vector{e, e} : std::vector{e}, "gate_weight",
              "head_output.gate {}", gate);
  check_stage(spec.differential, x.lambda_4d, {4, spec.head_dim}, "lambda", "differential {}",
              spec.differential);
  check_stage(gated, x.gate_bias, full ? std::vector{e} : std::vector<int64_t>{}, "gate_bias",
              "head_output.gate {}", gate);
}

}  // namespace

std::vector<std::pair<std::string_view, at::Tensor*>> AttentionTensors::named() {
  return {{"tau", &tau_bt},
          {"bias_table", &bias_table},
          {"sink_logit", &sink_logit_h},
          {"kernel_before", &kernel_before_hqk},
          {"kernel_after", &kernel_after_hqk},
          {"mix_before", &mix_before_noi},
          {"mix_after", &mix_after_nio},
          {"head_gain", &head_gain_e},
          {"gate_weight", &gate_weight},
          {"gate_bias", &gate_bias},
          {"lambda", &lambda_4d},
          {"groups", &groups_bsk},
          {"members", &members_bs},
          {"focus_strength", &focus_strength},
          {"query_routes", &query_routes_bht},
          {"key_routes", &key_routes_bhs},
          {"key_nearness", &key_nearness_bhs},
          {"own", &own}};
}

void check_inputs(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v, const AttentionTensors& tensors,
                  const AttentionContext& context) {
  spec.check();
  for (const auto& [x, name] : {std::pair{&q, "q"}, {&k, "k"}, {&v, "v"}}) {
    if (!x->defined() || x->dim() != 4)
      fail<ShapeError>("attention", "{} must have 4 dimensions [b, heads, tokens, width]; got {}",
                       name, shape_text(*x));
    require<ShapeError>(
        x->is_floating_point() && x->scalar_type() == q.scalar_type() && x->device() == q.device(),
        "attention",
        "q, k and v must share one floating dtype and device; {} differs from q or is not floating",
        name);
  }
  const int64_t b = q.size(0), t = q.size(2), s = k.size(2);
  check_tensor(q, {b, spec.heads, t, spec.head_dim}, "q");
  check_tensor(k, {b, spec.kv_heads, s, spec.head_dim}, "k");
  check_tensor(v, {b, spec.value_heads(), s, spec.value_width()}, "v");
  check_stage_tensors(spec, tensors, b, t);
  check_focus_tensors(spec.focus, tensors, b, t, s);
  check_routing_tensors(spec, tensors, b, t, s);
  for (const auto& [x, name] : {std::pair{&context.query_positions_bt, "query_positions"},
                                {&context.key_positions_bs, "key_positions"},
                                {&context.query_documents_bt, "query_documents"},
                                {&context.key_documents_bs, "key_documents"}}) {
    if (x->defined() && x->dim() != 1 && (x->dim() != 2 || (x->size(0) != b && x->size(0) != 1)))
      fail<ShapeError>("attention", "{} must have {} rows, 1 row or one dimension; got {}", name, b,
                       shape_text(*x));
  }
  if (context.key_lengths_b.defined()) checked_lengths(context, b, s);
}

at::ScalarType accumulate_type(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor scaled_logits(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                         const at::Tensor& k_bgsd, const at::Tensor& tau_bt) {
  const int64_t b = q_bhtd.size(0), h = q_bhtd.size(1), t = q_bhtd.size(2), g = k_bgsd.size(1),
                s = k_bgsd.size(2);
  // The query heads of one key head become rows of one product, so keys are never repeated.
  const at::Tensor q_rows = q_bhtd.reshape({b, g, h / g * t, q_bhtd.size(3)});
  const at::Tensor raw = pair_scores(q_rows, k_bgsd).reshape({b, h, t, s});
  if (spec.temperature.kind == TemperatureSpec::Kind::learned) {
    return raw / tau_bt.to(raw.scalar_type()).reshape({b, 1, t, 1});
  }
  return raw * spec.logit_scale();
}

std::vector<double> alibi_slopes(int64_t heads) {
  const auto geometric = [](int64_t count, int64_t index) {
    return std::exp2(-8.0 * static_cast<double>(index) / static_cast<double>(count));
  };
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  for (int64_t h = 1; h <= power; ++h) slopes.push_back(geometric(power, h));
  for (int64_t odd = 1; std::ssize(slopes) < heads; odd += 2)
    slopes.push_back(geometric(2 * power, odd));
  return slopes;
}

at::Tensor t5_buckets(const at::Tensor& distance, int64_t buckets, int64_t max_distance,
                      bool causal) {
  const int64_t count = causal ? buckets : buckets / 2;
  const int64_t exact = count / 2;
  std::vector<int64_t> bucket_of(static_cast<size_t>(max_distance) + 1);
  for (int64_t n = 0; n <= max_distance; ++n) {
    const double ratio =
        std::log(static_cast<double>(std::max<int64_t>(n, 1)) / static_cast<double>(exact)) /
        std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
    bucket_of[n] =
        n < exact
            ? n
            : std::min(exact + static_cast<int64_t>(static_cast<double>(count - exact) * ratio),
                       count - 1);
  }
  const at::Tensor table = at::tensor(bucket_of, at::kLong).to(distance.device());
  const at::Tensor n =
      causal ? distance.clamp(0, max_distance) : distance.abs().clamp(0, max_distance);
  const at::Tensor bucket = table.index({n});
  return causal ? bucket : bucket + (distance < 0).to(at::kLong) * count;
}

at::Tensor position_bias(const AttentionSpec& spec, const AttentionTensors& tensors,
                         const Places& places, at::ScalarType dtype) {
  switch (spec.bias.kind) {
    case BiasSpec::Kind::none:
      return {};
    case BiasSpec::Kind::alibi: {
      const at::Tensor distance = distances(places).to(dtype).unsqueeze(1);
      const at::Tensor slopes =
          at::tensor(alibi_slopes(spec.heads), at::kDouble).to(distance.options());
      return distance * -slopes.reshape({1, spec.heads, 1, 1});
    }
    case BiasSpec::Kind::t5: {
      const at::Tensor bucket_bts = t5_buckets(distances(places), spec.bias.buckets,
                                               spec.bias.max_distance, spec.mask.causal);
      return at::embedding(tensors.bias_table.to(dtype), bucket_bts).permute({0, 3, 1, 2});
    }
  }
  return {};
}

Softmax softmax_rows(const at::Tensor& logits, const at::Tensor& sink_logit_h, bool want_lse) {
  const int64_t s = logits.size(3);
  if (sink_logit_h.defined()) {
    // One more key with value 0: the row is never empty, so nothing needs care.
    const at::Tensor sink = sink_logit_h.to(logits.scalar_type()).reshape({1, -1, 1, 1});
    const at::Tensor extended =
        at::cat({logits, sink.expand({logits.size(0), logits.size(1), logits.size(2), 1})}, -1);
    return {at::softmax(extended, -1).narrow(-1, 0, s),
            want_lse ? at::logsumexp(extended, -1) : at::Tensor()};
  }
  if (s == 0)
    return {logits,
            want_lse ? logits.new_full(logits.sizes().slice(0, 3), -kInfinity) : at::Tensor()};
  // Rows of -inf alone would give 0/0: they are computed as rows of zeros and then overwritten,
  // which also cuts the gradient.
  const at::Tensor empty = at::isneginf(at::amax(logits.detach(), -1, true));
  const at::Tensor safe = logits.masked_fill(empty, 0.0);
  Softmax result;
  result.weights_bhts = at::softmax(safe, -1).masked_fill(empty, 0.0);
  if (want_lse) result.lse_bht = at::logsumexp(safe, -1).masked_fill(empty.squeeze(-1), -kInfinity);
  return result;
}

at::Tensor dropout_factors(const AttentionSpec& spec, const AttentionContext& context,
                           int64_t first_row, int64_t first_key, const at::Tensor& weights) {
  const int64_t heads = weights.size(1), rows = weights.size(2), keys = weights.size(3);
  at::Tensor factors = at::empty(weights.sizes(), at::kFloat);
  float* data = factors.data_ptr<float>();
  const float p = static_cast<float>(spec.dropout);
  at::parallel_for(0, weights.size(0) * heads * rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t i = row % rows, h = row / rows % heads, b = row / rows / heads;
      const DropoutStream stream{.seed = mix_seed(context.dropout_seed, static_cast<uint64_t>(b)),
                                 .layer = static_cast<uint32_t>(context.layer),
                                 .head = static_cast<uint32_t>(h)};
      for (int64_t j = 0; j < keys; ++j) {
        data[row * keys + j] = dropout_keeps(stream, p, first_row + i, first_key + j) ? 1.0f : 0.0f;
      }
    }
  });
  return factors.to(weights.options()) / (1.0 - spec.dropout);
}

at::Tensor weighted_values(const at::Tensor& weights, const at::Tensor& v_bgse) {
  const int64_t b = weights.size(0), h = weights.size(1), t = weights.size(2), g = v_bgse.size(1);
  const at::Tensor rows = weights.reshape({b, g, h / g * t, weights.size(3)});
  return weigh_values(rows, v_bgse).reshape({b, h, t, v_bgse.size(3)});
}

}  // namespace fovea
