// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/selector_memory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "fovea/attention/cache/hash_tables.h"
#include "fovea/attention/call.h"
#include "fovea/runtime/own_kernels.h"

namespace fovea {

void SelectorMemory::complete(SelectorInputs& inputs, const AttentionSpec& spec,
                              const AttentionCache& cache, int64_t queries) {
  const at::NoGradGuard no_gradient;
  if (queries != 1 || !spec.magic_pig.active()) return;
  const at::Tensor keys = cache.rows(stream::kKeys);
  if (!has_own_kernels(keys)) return;  // tables are made and read by kernels
  const at::Tensor prompts = inputs.prompts_b.cpu().contiguous();
  const std::span of_sequences(prompts.const_data_ptr<int64_t>(),
                               static_cast<size_t>(prompts.numel()));
  if (!tables_ || !std::ranges::equal(tables_->prompts(), of_sequences) ||
      tables_->spec() != spec.magic_pig)
    tables_ = std::make_shared<HashTables>(spec.magic_pig, keys.transpose(1, 2), of_sequences);
  inputs.tables = tables_;
}

void SelectorMemory::truncate(std::span<const int64_t> lengths) {
  if (!tables_) return;
  for (size_t b = 0; b < lengths.size(); ++b)
    if (lengths[b] < tables_->prompts()[b]) return tables_.reset();
}

int64_t SelectorMemory::bytes() const { return tables_ ? tables_->bytes() : 0; }

}  // namespace fovea
