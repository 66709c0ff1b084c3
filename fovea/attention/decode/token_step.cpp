// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/decode/token_step.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>

#include "fovea/attention/backend.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/head_output.h"
#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/paths/mixing.h"
#include "fovea/attention/positions/bias.h"

namespace fovea {

namespace {

// Keys before the window that stay: 0 where there are none, or no window.
int64_t first_keys(const AttentionSpec& spec) {
  if (spec.streaming.active()) return spec.streaming.start;
  return spec.mask.window > 0 && spec.mask.sparsity == MaskRule::Sparsity::full ? spec.mask.sinks
                                                                                : 0;
}

// Why the kernels lack the spec, each of whose mechanisms they have.
std::optional<std::string> why_not_together(const AttentionSpec& spec) {
  const bool mixes = joins_pairs(spec);
  if (mixes) {
    const int64_t queries = 1 + earlier_rows(spec).all;
    if (auto why = why_not_mixed_rows(kernels::cpu(), spec, queries)) return why;
  }
  if (first_keys(spec) > kernels::kMostFewKeys)
    return fmt::format("more than {} first keys", kernels::kMostFewKeys);
  if (first_keys(spec) > 0) {
    if (spec.bias.kind != BiasSpec::Kind::none) return "a position bias of first keys";
    if (mixes || spec.focus.active() || spec.kv_shift.active())
      return "first keys with another mechanism";
  }
  if (spec.focus.gate != FocusSpec::Gate::hard || mixes) return why_not_gate(spec.focus);
  if (spec.mask != MaskRule{}) return "focus with a mask";
  if (spec.bias.kind != BiasSpec::Kind::none) return "focus with a position bias";
  if (spec.kv_shift.active() || spec.head_output.active()) return "hard Focus of unmixed logits";
  return std::nullopt;
}

std::optional<std::string> why_not_sizes(const AttentionSpec& spec) {
  if (spec.value_width() != spec.head_dim) return "values of another width than keys";
  const kernels::AttentionDecode<float> problem{.sizes = sizes_of(spec)};
  if (!kernels::cpu().prefers_decode(problem.sizes))
    return fmt::format("{} query heads a key head", spec.heads / spec.kv_heads);
  return kernels::cpu().why_not(problem);
}

}  // namespace

TokenUse token_form(const AttentionSpec& given) {
  const AttentionSpec spec = in_mask_terms(given);
  TokenUse use = token_use(spec);
  if (use.form == TokenForm::operations) return use;
  if (auto why = why_not_together(spec)) return {TokenForm::operations, *std::move(why)};
  if (auto why = why_not_sizes(spec)) return {TokenForm::operations, *std::move(why)};
  return {use.form};
}

DecodeBias decode_bias(const AttentionSpec& spec, const at::Tensor& bias_table, at::Device device) {
  DecodeBias bias;
  if (spec.bias.kind == BiasSpec::Kind::alibi) {
    bias.alibi_h = at::tensor(alibi_slopes(spec.heads), at::kFloat).to(device);
  }
  if (spec.bias.kind == BiasSpec::Kind::t5) bias.bias_hn = bias_by_distance(spec, bias_table);
  return bias;
}

kernels::ScoreParameters decode_rule(const AttentionSpec& spec, const DecodeBias& bias,
                                     const at::Tensor& sink_logit_h) {
  kernels::ScoreParameters rule{.scale = static_cast<float>(spec.logit_scale()),
                                .soft_cap = static_cast<float>(spec.soft_cap)};
  if (bias.alibi_h.defined()) rule.alibi = bias.alibi_h.const_data_ptr<float>();
  if (bias.bias_hn.defined() && bias.bias_hn.numel() > 0) {
    rule.distance_bias = bias.bias_hn.const_data_ptr<float>();
    rule.bias_count = bias.bias_hn.size(1);
  }
  if (sink_logit_h.defined()) rule.sink_logit = sink_logit_h.const_data_ptr<float>();
  return rule;
}

TokenStep::TokenStep(AttentionSpec spec, const kernels::ScoreParameters& rule)
    : spec_(in_mask_terms(std::move(spec))), rule_(rule), gate_(spec_.focus) {}

namespace {

template <class T>
T* new_row(const CachedRows& rows, int64_t b, int64_t head, int64_t back = 0) {
  const KeptRows& kept = rows.sequences[static_cast<size_t>(b)];
  if (kept.rows == 0)  // it is one of the first
    return static_cast<T*>(rows.first.data) + b * rows.first.batch + head * rows.first.head +
           (kept.first_rows - 1) * rows.first.row;
  return static_cast<T*>(rows.data) + b * rows.batch + head * rows.head +
         (kept.begin + kept.rows - 1 - back) * rows.row;
}

template <class T>
kernels::HeadRows<const T> rows_of_heads(const CachedRows& rows) {
  return {static_cast<const T*>(rows.data), rows.batch, rows.head, rows.row};
}

// The rows of sequence b from its first kept one on.
template <class T>
kernels::HeadRows<const T> kept_rows(const CachedRows& rows, int64_t b) {
  kernels::HeadRows<const T> heads = rows_of_heads<T>(rows);
  heads.data += b * rows.batch + rows.sequences[static_cast<size_t>(b)].begin * rows.row;
  return heads;
}

template <class T>
kernels::HeadRows<T> of_sequence(kernels::HeadRows<T> rows, int64_t b) {
  rows.data += b * rows.batch;
  return rows;
}

// What the token that is `back` before the last kept one sees.
RowVisits visits_back(const MaskRule& mask, const KeptRows& kept, int64_t back) {
  const KeyRange run{.begin = 0, .end = kept.rows, .shift = kept.first_position};
  return row_visits(mask, kept.first_position + kept.rows - 1 - back, {&run, 1}).value();
}

// x a1 + before a2 in float32, without a fused multiply-add: as the tensor operations have it.
template <class T>
void shift_row(const T* x, const T* before, const float* weights, int64_t width, T* to) {
  for (int64_t c = 0; c < width; ++c) {
    const float now = to_float(x[c]) * weights[0],
                then = (before != nullptr ? to_float(before[c]) : 0.0f) * weights[1];
    from_float(now + then, to[c]);
  }
}

}  // namespace

template <class T>
CachedRows TokenStep::append(AttentionCache& cache, const char* name, const char* unshifted,
                             const at::Tensor& shift_g2, int64_t heads,
                             kernels::HeadRows<const T> from) {
  const int64_t width = spec_.head_dim;
  const CachedRows rows = cache.extend(name);
  const bool shifts = shift_g2.defined();
  const at::Tensor weights = shifts ? shift_g2.to(at::kFloat).contiguous() : shift_g2;
  const CachedRows given = shifts ? cache.extend(unshifted) : CachedRows{};
  for (int64_t b = 0; b < cache.batch(); ++b) {
    for (int64_t g = 0; g < heads; ++g) {
      const T* const x = from.at(b, g);
      T* const to = new_row<T>(rows, b, g);
      if (!shifts) {
        std::copy_n(x, width, to);
        continue;
      }
      std::copy_n(x, width, new_row<T>(given, b, g));
      const bool first = given.sequences[static_cast<size_t>(b)].rows < 2;
      shift_row(x, first ? nullptr : new_row<const T>(given, b, g, 1),
                weights.const_data_ptr<float>() + 2 * g, width, to);
    }
  }
  return rows;
}

const float* TokenStep::tau_of(const CachedRows& taus, const float* token, int64_t b) const {
  if (token == nullptr || taus.data == nullptr) return token != nullptr ? token + b : nullptr;
  *new_row<float>(taus, b, 0) = token[b];
  return kept_rows<float>(taus, b).data;
}

// Sequence by sequence: each has rows of its own, and with a gate factors of its own for its keys.
template <class T>
void TokenStep::attend_plainly(const CachedRows& keys, const CachedRows& values,
                               const TokenHeads<T>& token, float* lse) {
  for (int64_t b = 0; b < std::ssize(keys.sequences); ++b) {
    const KeptRows& kept = keys.sequences[static_cast<size_t>(b)];
    const RowVisits row = first_keys(spec_) > 0
                              ? RowVisits{.near = {.begin = 0, .end = kept.rows}, .far = {}}
                              : visits_back(spec_.mask, kept, 0);
    kernels::ScoreParameters rule = rule_;
    rule.tau = tau_of({}, token.tau, b);
    if (gate_.active()) rule.gate = gate_.gate(b, 1);
    kernels::cpu().run(
        kernels::AttentionDecode<T>{.sizes = {.batch = 1,
                                              .heads = spec_.heads,
                                              .kv_heads = spec_.kv_heads,
                                              .queries = 1,
                                              .keys = kept.rows,
                                              .head_dim = spec_.head_dim,
                                              .value_dim = spec_.head_dim},
                                    .rule = rule,
                                    .rows = {&row, 1},
                                    .q = of_sequence(token.q, b),
                                    .k = kept_rows<T>(keys, b),
                                    .v = kept_rows<T>(values, b),
                                    .out = of_sequence(token.out, b),
                                    .lse = lse != nullptr ? lse + b * spec_.heads : lse});
  }
}

// Recent keys, then the first ones as few keys of the same softmax.
template <class T>
void TokenStep::attend_after_first(const CachedRows& keys, const CachedRows& values,
                                   const TokenHeads<T>& token) {
  const int64_t batch = std::ssize(keys.sequences), count = first_keys(spec_);
  lse_.resize(static_cast<size_t>(batch * spec_.heads));
  attend_plainly(keys, values, token, lse_.data());
  first_seen_.clear();
  for (const KeptRows& kept : keys.sequences)
    first_seen_.push_back(~uint64_t{0} >> (kernels::kMostFewKeys - kept.first_rows));
  std::vector<int32_t> set_of_head;
  for (int64_t n = 0; n < batch * spec_.heads; ++n)
    set_of_head.push_back(static_cast<int32_t>(n / spec_.heads));
  first_keys_.resize(static_cast<size_t>(count));
  std::iota(first_keys_.begin(), first_keys_.end(), 0);
  const auto first = [](const CachedRows& rows) {
    return kernels::HeadRows<const T>{static_cast<const T*>(rows.first.data), rows.first.batch,
                                      rows.first.head, rows.first.row};
  };
  kernels::cpu().run(kernels::FewKeys<T>{.sizes = {.batch = batch,
                                                   .heads = spec_.heads,
                                                   .kv_heads = spec_.kv_heads,
                                                   .queries = 1,
                                                   .keys = count,
                                                   .head_dim = spec_.head_dim,
                                                   .value_dim = spec_.head_dim},
                                         .q = spec_.streaming.active() ? token.start_q : token.q,
                                         .k = first(keys),
                                         .v = first(values),
                                         .key_rows = first_keys_.data(),
                                         .seen = {first_seen_.data(), set_of_head.data()},
                                         .scale = rule_.scale,
                                         .tau = token.tau,
                                         .soft_cap = rule_.soft_cap,
                                         .out = token.out,
                                         .lse = lse_.data()});
}

template <class T>
void TokenStep::attend_mixed(AttentionCache& cache, const CachedRows& keys,
                             const CachedRows& values, const AttentionTensors& tensors,
                             const TokenHeads<T>& token) {
  const MixingOperands operands = mixing_operands(tensors);
  const kernels::MixingRule mixing = mixing_rule(spec_, operands);
  const bool keeps = cache.has(stream::kQueries);
  const CachedRows queries = keeps ? cache.extend(stream::kQueries) : CachedRows{};
  const CachedRows taus = cache.has(stream::kTau) ? cache.extend(stream::kTau) : CachedRows{};
  for (int64_t b = 0; b < cache.batch(); ++b) {
    for (int64_t h = 0; keeps && h < spec_.heads; ++h)
      std::copy_n(token.q.at(b, h), spec_.head_dim, new_row<T>(queries, b, h));
    const KeptRows& kept = keys.sequences[static_cast<size_t>(b)];
    const int64_t count = keeps ? queries.sequences[static_cast<size_t>(b)].rows : 1;
    rows_.clear();
    for (int64_t n = count - 1; n >= 0; --n) rows_.push_back(visits_back(spec_.mask, kept, n));
    kernels::ScoreParameters rule = rule_;
    rule.tau = tau_of(taus, token.tau, b);
    rule.gate = gate_.gate(b, count);
    kernels::cpu().run(
        kernels::MixingDecode<T>{.sizes = {.batch = 1,
                                           .heads = spec_.heads,
                                           .kv_heads = spec_.kv_heads,
                                           .queries = count,
                                           .keys = kept.rows,
                                           .head_dim = spec_.head_dim,
                                           .value_dim = spec_.head_dim},
                                 .rule = rule,
                                 .mixing = mixing,
                                 .members = gate_.members(b, count),
                                 .rows = rows_,
                                 .results = 1,
                                 .q = keeps ? kept_rows<T>(queries, b) : of_sequence(token.q, b),
                                 .k = kept_rows<T>(keys, b),
                                 .v = kept_rows<T>(values, b),
                                 .out = of_sequence(token.out, b)});
  }
}

template <class T>
void TokenStep::attend(AttentionCache& cache, const AttentionTensors& tensors,
                       const TokenHeads<T>& token) {
  const CachedRows keys = append<T>(cache, stream::kKeys, stream::kUnshiftedKeys,
                                    tensors.key_shift_g2, spec_.kv_heads, token.k),
                   values = append<T>(cache, stream::kValues, stream::kUnshiftedValues,
                                      tensors.value_shift_g2, spec_.kv_heads, token.v);
  if (gate_.active()) gate_.append(cache, token.focus);
  if (joins_pairs(spec_)) {
    attend_mixed(cache, keys, values, tensors, token);
  } else if (first_keys(spec_) > 0) {
    attend_after_first(keys, values, token);
  } else {
    attend_plainly(keys, values, token, nullptr);
  }
  if (!spec_.head_output.active()) return;
  const std::vector<int64_t> sizes{cache.batch(), spec_.heads, 1, spec_.head_dim},
      strides{token.out.batch, token.out.head, token.out.row, 1};
  const at::ScalarType dtype = std::is_same_v<T, float> ? at::kFloat : at::kBFloat16;
  const at::Tensor out = at::from_blob(token.out.data, sizes, strides, at::TensorOptions(dtype));
  out.copy_(head_output(spec_, out, tensors));
}

template void TokenStep::attend(AttentionCache&, const AttentionTensors&, const TokenHeads<float>&);
template void TokenStep::attend(AttentionCache&, const AttentionTensors&,
                                const TokenHeads<BFloat16>&);

}  // namespace fovea
