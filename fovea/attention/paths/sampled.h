// MagicPIG's queries by kernels (spec 4.5; internal to attention/): one query asks hash tables,
// rows of a text compare hashes pair by pair.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "fovea/attention/paths/fused_call.h"

namespace fovea {

/// Beyond what every selector's kernels refuse.
std::optional<std::string> why_not_sampled(const AttentionCall& call);
AttentionResult run_sampled(const AttentionCall& call);

/// Bytes of what a block of query rows needs beside the call, where more would only cost memory.
inline constexpr int64_t kSelectorBlockBytes = int64_t{16} << 20;

inline int64_t heads_per_key(const AttentionCall& call) {
  return call.spec.heads / call.spec.kv_heads;
}

/// Learned temperatures as kernels read them; undefined stays undefined.
inline at::Tensor float_rows(const at::Tensor& tau) {
  return tau.defined() ? tau.to(at::kFloat).contiguous() : tau;
}

/// "read of keys", a row; of texts also how many a row sees in the middle.
inline PathReason one_query_reason(int64_t read, int64_t rows, int64_t keys) {
  return {.kind = PathReason::Kind::one_query,
          .detail = fmt::format("{} of {} keys are read", read / std::max<int64_t>(rows, 1), keys)};
}
inline PathReason text_reason(int64_t read, int64_t rows, int64_t queries, int64_t keys) {
  return {.kind = PathReason::Kind::cheapest_plan,
          .detail = fmt::format("{} of {} keys are read by a row, {} seen",
                                read / std::max<int64_t>(rows, 1), keys, keys - (queries - 1) / 2)};
}

}  // namespace fovea
