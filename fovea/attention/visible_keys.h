// Counts the keys that a query sees under a mask, without a loop over the keys.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/attention/spec.h"

namespace fovea {

/// Keys j of 0 ... length - 1 with allowed(rule, query, j), one document; a few operations at any
/// length.
int64_t visible_keys(const MaskRule& rule, int64_t query, int64_t length);

/// The same of a layer: with Longformer and StreamingLLM, and the mean over the query heads.
double visible_keys(const AttentionSpec& spec, int64_t query, int64_t length);

/// How many tokens before a query the window of a rule or of a layer reaches; -1 where nothing
/// restricts it. Global tokens, start tokens and sinks are not counted.
int64_t window_reach(const MaskRule& rule);
int64_t window_reach(const AttentionSpec& spec);

}  // namespace fovea
