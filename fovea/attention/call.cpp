// Checks of a call of attention(), before a path is chosen.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/call.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/places.h"
#include "fovea/base/error.h"

namespace fovea {

std::string shape_text(const at::Tensor& x) {
  return x.defined() ? fmt::format("[{}]", fmt::join(x.sizes(), ", ")) : "none";
}

namespace {

// Every call of attention() comes through these checks: text is made only for an error.
void check_tensor(const at::Tensor& x, at::IntArrayRef sizes, std::string_view name) {
  if (x.defined() && x.sizes() == sizes) return;
  fail<ShapeError>("attention", "{} must be [{}]; got {}", name, fmt::join(sizes, ", "),
                   shape_text(x));
}

void check_inputs(const AttentionCall& call) {
  const AttentionSpec& spec = call.spec;
  const at::Tensor &q = call.q, &k = call.k, &v = call.v;
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
}

void check_places(const AttentionCall& call) {
  const AttentionContext& context = call.context;
  const int64_t b = call.q.size(0);
  for (const auto& [x, name] : {std::pair{&context.query_positions_bt, "query_positions"},
                                {&context.key_positions_bs, "key_positions"},
                                {&context.query_documents_bt, "query_documents"},
                                {&context.key_documents_bs, "key_documents"}}) {
    if (x->defined() && x->dim() != 1 && (x->dim() != 2 || (x->size(0) != b && x->size(0) != 1)))
      fail<ShapeError>("attention", "{} must have {} rows, 1 row or one dimension; got {}", name, b,
                       shape_text(*x));
  }
  if (context.key_lengths_b.defined()) checked_lengths(context, b, call.k.size(2));
}

}  // namespace

at::Tensor readable_rows(const at::Tensor& x) {
  // A check does not wait for a device.
  return x.defined() && x.is_cpu() ? x.contiguous() : at::Tensor();
}

// A value of `made` lives as long as the call.
const Places& AttentionCall::places() const {
  return *made.get([this] { return resolve_places(context, q.size(2), k.size(2), q.device()); });
}

const std::vector<StageUse>& AttentionCall::stages() const {
  return *made.get([this] { return stage_uses(spec); });
}

bool AttentionCall::wants_gradient() const {
  if (!at::GradMode::is_enabled()) return false;
  const auto wants = [](const at::Tensor& x) { return x.defined() && x.requires_grad(); };
  if (wants(q) || wants(k) || wants(v)) return true;
  for (const Mechanism* mechanism : mechanisms())
    for (const TensorSlot& slot : mechanism->tensors)
      if (wants(tensors.*slot.member)) return true;
  return false;
}

AttentionCall checked_call(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, const AttentionTensors& tensors,
                           const AttentionContext& context) {
  return checked_call(
      AttentionCall{.spec = spec, .q = q, .k = k, .v = v, .tensors = tensors, .context = context});
}

AttentionCall checked_call(AttentionCall call) {
  check_inputs(call);
  check_places(call);
  check_mechanism_tensors(call);
  rewrite_keys(call, nullptr);
  return call;
}

AttentionCall checked_call_without_values(AttentionSpec spec, const at::Tensor& q,
                                          const at::Tensor& k, AttentionTensors tensors,
                                          const AttentionContext& context) {
  spec.value_dim = spec.head_dim;
  AttentionCall call{
      .spec = std::move(spec), .q = q, .k = k, .tensors = std::move(tensors), .context = context};
  call.v = k.narrow(1, 0, call.spec.value_heads());
  for (const Mechanism* mechanism : mechanisms())
    if (mechanism->without_values != nullptr) mechanism->without_values(call);
  return checked_call(std::move(call));
}

}  // namespace fovea
