// KeyRule: how a layer says which distant keys a query sees.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea {

struct AttentionSpec;

/// By the mask alone, by groups of tokens (hard Focus), by lists of tokens (routing, given blocks),
/// in parts that one softmax joins (Longformer, StreamingLLM), by each query itself (selectors); or
/// each query sees the sums of all keys (Performer).
enum class KeyRule { mask, groups, lists, parts, selected, sums };

/// The rule of the mechanism that has one (Mechanism::key_rule); checks refuse two.
KeyRule key_rule(const AttentionSpec& spec);

}  // namespace fovea
