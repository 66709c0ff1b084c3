// Checks of a call of attention(), before a path is chosen.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/call.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <bit>

#include "fovea/attention/mechanisms/focus.h"
#include "fovea/attention/mechanisms/own_stage.h"
#include "fovea/attention/places.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

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

// The int64 rows of a tensor where their numbers can be read: not on the meta device.
at::Tensor readable(const at::Tensor& x) {
  return x.defined() && !x.is_meta() ? x.cpu().contiguous() : at::Tensor();
}

// Memberships are sets of the spec's groups. Where any two choices of top_k groups meet (2k > K),
// no path compares them, so each must be such a choice.
void check_members(const AttentionSpec& spec, const at::Tensor& members_bs,
                   const AttentionContext& context) {
  const FocusSpec& focus = spec.focus;
  const at::Tensor members = focus.reads_members() ? readable(members_bs) : at::Tensor();
  if (!members.defined()) return;
  const int64_t keys = members.size(1);
  const auto* bits = reinterpret_cast<const uint64_t*>(members.const_data_ptr<int64_t>());
  const uint64_t known = focus.groups < 64 ? (uint64_t{1} << focus.groups) - 1 : ~uint64_t{0};
  uint64_t all = 0;
  for (int64_t n = 0; n < members.numel(); ++n) all |= bits[n];
  if ((all & ~known) != 0) {
    int64_t n = 0;
    while ((bits[n] & ~known) == 0) ++n;
    fail<ShapeError>("attention",
                     "members are bits 0 to {}; token {} of row {} is in group {}; compute them "
                     "with the spec's number of groups",
                     focus.groups - 1, n % keys, n / keys, std::countr_zero(bits[n] & ~known));
  }
  if (!focus.keeps_every_pair()) return;
  const at::Tensor lengths = context.key_lengths_b.defined()
                                 ? checked_lengths(context, members.size(0), keys)
                                 : at::Tensor();
  for (int64_t n = 0; n < members.numel(); ++n) {
    const int64_t row = n / keys, token = n % keys;
    if (lengths.defined() && token >= lengths.const_data_ptr<int64_t>()[row]) continue;
    require<ShapeError>(std::popcount(bits[n]) >= focus.top_k, "attention",
                        "members must be {} groups a token (focus.top_k); token {} of row {} is in "
                        "{}",
                        focus.top_k, token, row, std::popcount(bits[n]));
  }
}

void check_routes(const AttentionSpec& spec, const AttentionTensors& x) {
  if (!spec.routing.active()) return;
  for (const at::Tensor* given : {&x.query_routes_bht, &x.key_routes_bhs}) {
    const at::Tensor routes = readable(*given);
    if (!routes.defined()) continue;
    const int64_t* const at = routes.const_data_ptr<int64_t>();
    for (int64_t n = 0; n < routes.numel(); ++n) {
      require<ShapeError>(at[n] >= 0 && at[n] < spec.routing.clusters, "routing",
                          "routes are clusters 0 to {}; got {}", spec.routing.clusters - 1, at[n]);
    }
  }
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
  check_members(spec, tensors.members_bs, context);
  check_routes(spec, tensors);
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

KeyRule AttentionCall::key_rule() const {
  if (spec.focus.gate == FocusSpec::Gate::hard) return KeyRule::groups;
  return spec.routing.active() || spec.blocks.active() ? KeyRule::lists : KeyRule::mask;
}

bool AttentionCall::wants_gradient() const {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor* x :
       {&q, &k, &v, &tensors.tau_bt, &tensors.bias_table, &tensors.sink_logit_h,
        &tensors.groups_bsk, &tensors.focus_strength}) {
    if (x->defined() && x->requires_grad()) return true;
  }
  return false;
}

AttentionCall checked_call(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, const AttentionTensors& tensors,
                           const AttentionContext& context) {
  check_inputs(spec, q, k, v, tensors, context);
  return {.spec = spec, .q = q, .k = k, .v = v, .tensors = tensors, .context = context};
}

AttentionCall checked_call_without_values(AttentionSpec spec, const at::Tensor& q,
                                          const at::Tensor& k, AttentionTensors tensors,
                                          const AttentionContext& context) {
  spec.value_dim = spec.head_dim;
  spec.head_output = {};
  for (at::Tensor* x : {&tensors.head_gain_e, &tensors.gate_weight, &tensors.gate_bias})
    *x = at::Tensor();
  return checked_call(spec, q, k, k.narrow(1, 0, spec.value_heads()), tensors, context);
}

AttentionCall without_neutral_focus(AttentionCall call) {
  if (!call.spec.focus.active() || !focus_is_neutral(call.spec.focus, call.context, call.k.size(2)))
    return call;
  call.spec.focus = {};
  AttentionTensors& x = call.tensors;
  for (at::Tensor* of_focus : {&x.groups_bsk, &x.members_bs, &x.focus_strength})
    *of_focus = at::Tensor();
  return call;
}

}  // namespace fovea
