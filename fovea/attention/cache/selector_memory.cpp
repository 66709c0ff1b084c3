// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/selector_memory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "fovea/attention/cache/hash_tables.h"
#include "fovea/attention/call.h"
#include "fovea/attention/mechanisms/magic_pig_choice.h"
#include "fovea/attention/mechanisms/sparq_choice.h"

namespace fovea {
namespace {

// The prompt of a sequence: the tokens of its first call, as far as they are still there.
int64_t prompt_before(const AttentionCache& cache, int64_t b, int64_t coming) {
  const int64_t length = cache.stream_length(kPromptStream, b);
  if (length == 0) return coming;
  return std::min(length, cache.rows(kPromptStream, b).select(1, -1).item<int64_t>());
}

// Sums of the values up to each of the next tokens, [b, t, g, e].
at::Tensor running_sums(const AttentionCache& cache, const at::Tensor& v_bgte) {
  const at::Tensor values = v_bgte.transpose(1, 2);
  at::Tensor sums = values.size(1) == 1 ? values.to(at::kDouble, /*non_blocking=*/false, true)
                                        : values.cumsum(1, at::kDouble);
  for (int64_t b = 0; b < sums.size(0); ++b) {
    const at::Tensor before = cache.rows(kValueSumsStream, b);
    if (before.size(1) > 0) sums.select(0, b).add_(before.select(0, 0).select(0, -1));
  }
  return sums;
}

}  // namespace

void append_selector_rows(AttentionCache& cache, const AttentionSpec& spec, const at::Tensor& k,
                          const at::Tensor& v) {
  const at::NoGradGuard no_gradient;
  const int64_t b = k.size(0), t = k.size(2);
  if (spec.sparq.active())
    cache.append(kComponentsStream,
                 k.permute({0, 2, 1, 3}).reshape({b, t, k.size(1) * k.size(3), 1}));
  if (cache.has(kValueSumsStream)) cache.append(kValueSumsStream, running_sums(cache, v));
  if (!spec.magic_pig.active()) return;
  at::Tensor rows = at::empty({b, t, 1}, at::kLong);
  for (int64_t n = 0; n < b; ++n) rows.select(0, n).fill_(prompt_before(cache, n, t));
  cache.append(kPromptStream, rows.to(k.device()));
}

SelectorInputs selector_inputs(const AttentionSpec& spec, const AttentionCache& cache,
                               std::optional<int64_t> sequence) {
  SelectorInputs inputs;
  const auto rows = [&](const char* name) {
    return sequence ? cache.rows(name, *sequence) : cache.rows(name);
  };
  if (spec.sparq.active()) {
    const at::Tensor all = rows(kComponentsStream).squeeze(-1).transpose(1, 2);  // [b, g d, s]
    inputs.key_components_bgds = all.unflatten(1, {spec.kv_heads, spec.head_dim});
    if (cache.has(kValueSumsStream) && all.size(2) > 0)
      inputs.value_sums_bge = rows(kValueSumsStream).select(1, -1).to(at::kDouble);
  }
  if (spec.magic_pig.active()) {
    const at::Tensor all = rows(kPromptStream);
    if (all.size(1) > 0) inputs.prompts_b = all.select(1, -1).squeeze(-1);
  }
  return inputs;
}

void SelectorMemory::complete(SelectorInputs& inputs, const AttentionSpec& spec,
                              const AttentionCache& cache, int64_t queries) {
  const at::NoGradGuard no_gradient;
  if (queries != 1 || !spec.magic_pig.active()) return;
  const at::Tensor prompts = inputs.prompts_b.cpu().contiguous();
  const std::span of_sequences(prompts.const_data_ptr<int64_t>(),
                               static_cast<size_t>(prompts.numel()));
  if (!tables_ || !std::ranges::equal(tables_->prompts(), of_sequences) ||
      tables_->spec() != spec.magic_pig)
    tables_ = std::make_shared<HashTables>(spec.magic_pig,
                                           cache.rows(stream::kKeys).transpose(1, 2), of_sequences);
  inputs.tables = tables_;
}

void SelectorMemory::truncate(std::span<const int64_t> lengths) {
  if (!tables_) return;
  for (size_t b = 0; b < lengths.size(); ++b)
    if (lengths[b] < tables_->prompts()[b]) return tables_.reset();
}

int64_t SelectorMemory::bytes() const { return tables_ ? tables_->bytes() : 0; }

}  // namespace fovea
