// Rows of attention on a text, by recomputation. Private to fovea/engine.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/engine/attention_rows.h"
#include "fovea/engine/text_model.h"

namespace fovea {

/// Requests for attention that may wait.
constexpr int64_t kMostLooks = 16;

/// ConfigError for layers, heads, places and numbers that are impossible; PromptTooLong.
void check_attention_rows(const TextModel& model, const std::vector<int32_t>& tokens,
                          const AttentionRowsRequest& request);

/// Answers a request that was checked; `tokens` are those of its text.
AttentionRows attention_rows_of(const TextModel& model, const std::vector<int32_t>& tokens,
                                const AttentionRowsRequest& request);

}  // namespace fovea
