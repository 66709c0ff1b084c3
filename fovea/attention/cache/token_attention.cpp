// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/token_attention.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "fovea/attention/cache/decode_rule.h"
#include "fovea/attention/kernel_types.h"
#include "fovea/attention/mask_terms.h"
#include "fovea/attention/mechanisms/head_output.h"
#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/paths/mixing.h"
#include "fovea/kernels/cpu/attention.h"
#include "fovea/kernels/cpu/mixing_decode.h"

namespace fovea {

namespace {

// Potentials of the tokens so far would have to be found before the groups.
std::optional<std::string> why_not_token_groups(const FocusSpec& focus) {
  if (!focus.active() || focus.assignment != FocusSpec::Assignment::sinkhorn ||
      focus.potentials == FocusSpec::Potentials::ema)
    return std::nullopt;
  return fmt::format("focus.potentials {}", enum_name(focus.potentials));
}

}  // namespace

std::optional<std::string> why_not_token_attention(const AttentionSpec& spec) {
  AttentionSpec rest = in_mask_terms(spec);
  const bool mixes = joins_pairs(rest);
  if (mixes) {
    const kernels::AttentionSizes sizes{.heads = rest.heads,
                                        .kv_heads = rest.kv_heads,
                                        .queries = 1 + rest.multi_token.earlier_queries(),
                                        .head_dim = rest.head_dim,
                                        .value_dim = rest.value_width()};
    if (auto why = kernels::why_not_mixing_decode(sizes, {}, mixing_sizes(rest))) return why;
  }
  if (rest.focus.gate == FocusSpec::Gate::hard && !mixes) return "hard Focus of unmixed logits";
  if (auto why = why_not_gate(rest.focus)) return why;
  if (auto why = why_not_token_groups(rest.focus)) return why;
  rest.focus = {};
  rest.kv_shift = {};
  rest.multi_token = {};
  rest.head_mix = {};
  rest.head_output = {};
  return why_not_decode_rule(rest);
}

TokenAttention::TokenAttention(AttentionSpec spec, const kernels::ScoreParameters& rule)
    : spec_(in_mask_terms(std::move(spec))), rule_(rule), gate_(spec_.focus) {}

namespace {

template <class T>
T* new_row(const CachedRows& rows, int64_t b, int64_t head, int64_t back = 0) {
  const KeptRows& kept = rows.sequences[static_cast<size_t>(b)];
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
CachedRows TokenAttention::append(AttentionCache& cache, const char* name, const char* unshifted,
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

const float* TokenAttention::tau_of(const CachedRows& taus, const float* token, int64_t b) const {
  if (token == nullptr || taus.data == nullptr) return token != nullptr ? token + b : nullptr;
  *new_row<float>(taus, b, 0) = token[b];
  return kept_rows<float>(taus, b).data;
}

template <class T>
void TokenAttention::attend_plainly(const CachedRows& keys, const CachedRows& values,
                                    const TokenHeads<T>& token) {
  rows_.clear();
  first_rows_.clear();
  int64_t longest = 0;
  for (const KeptRows& kept : keys.sequences) {
    rows_.push_back(visits_back(spec_.mask, kept, 0));
    first_rows_.push_back(kept.begin);
    longest = std::max(longest, kept.rows);
  }
  kernels::ScoreParameters rule = rule_;
  rule.tau = token.tau;
  kernels::run(kernels::AttentionDecode<T>{.sizes = {.batch = std::ssize(rows_),
                                                     .heads = spec_.heads,
                                                     .kv_heads = spec_.kv_heads,
                                                     .queries = 1,
                                                     .keys = longest,
                                                     .head_dim = spec_.head_dim,
                                                     .value_dim = spec_.head_dim},
                                           .rule = rule,
                                           .rows = rows_,
                                           .first_rows = first_rows_,
                                           .q = token.q,
                                           .k = rows_of_heads<T>(keys),
                                           .v = rows_of_heads<T>(values),
                                           .out = token.out});
}

// Sequence by sequence: each has factors of its own for its keys.
template <class T>
void TokenAttention::attend_gated(const CachedRows& keys, const CachedRows& values,
                                  const TokenHeads<T>& token) {
  for (int64_t b = 0; b < std::ssize(keys.sequences); ++b) {
    const KeptRows& kept = keys.sequences[static_cast<size_t>(b)];
    const RowVisits row = visits_back(spec_.mask, kept, 0);
    kernels::ScoreParameters rule = rule_;
    rule.tau = tau_of({}, token.tau, b);
    rule.gate = gate_.gate(b, 1);
    kernels::run(kernels::AttentionDecode<T>{.sizes = {.batch = 1,
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
                                             .out = of_sequence(token.out, b)});
  }
}

template <class T>
void TokenAttention::attend_mixed(AttentionCache& cache, const CachedRows& keys,
                                  const CachedRows& values, const AttentionTensors& tensors,
                                  const TokenHeads<T>& token) {
  const MixingOperands operands = mixing_operands(tensors);
  const kernels::MixingRule mixing = mixing_rule(spec_.multi_token, operands);
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
    kernels::run(
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
void TokenAttention::attend(AttentionCache& cache, const AttentionTensors& tensors,
                            const TokenHeads<T>& token) {
  const CachedRows keys = append<T>(cache, stream::kKeys, stream::kUnshiftedKeys,
                                    tensors.key_shift_g2, spec_.kv_heads, token.k),
                   values = append<T>(cache, stream::kValues, stream::kUnshiftedValues,
                                      tensors.value_shift_g2, spec_.kv_heads, token.v);
  if (gate_.active()) gate_.append(cache, token.focus);
  if (joins_pairs(spec_)) {
    attend_mixed(cache, keys, values, tensors, token);
  } else if (gate_.active()) {
    attend_gated(keys, values, token);
  } else {
    attend_plainly(keys, values, token);
  }
  if (!spec_.head_output.active()) return;
  const std::vector<int64_t> sizes{cache.batch(), spec_.heads, 1, spec_.head_dim},
      strides{token.out.batch, token.out.head, token.out.row, 1};
  const at::ScalarType dtype = std::is_same_v<T, float> ? at::kFloat : at::kBFloat16;
  const at::Tensor out = at::from_blob(token.out.data, sizes, strides, at::TensorOptions(dtype));
  out.copy_(head_output(spec_, out, tensors));
}

template void TokenAttention::attend(AttentionCache&, const AttentionTensors&,
                                     const TokenHeads<float>&);
template void TokenAttention::attend(AttentionCache&, const AttentionTensors&,
                                     const TokenHeads<BFloat16>&);

}  // namespace fovea
