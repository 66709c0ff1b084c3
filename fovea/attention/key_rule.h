// KeyRule: how a layer says which distant keys a query sees.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea {

struct AttentionSpec;

/// The rule by which a layer chooses the keys of a query.
/// - `mask`: the mask alone
/// - `groups`: groups of tokens (hard Focus)
/// - `lists`: lists of tokens (routing, given blocks)
/// - `parts`: parts that one softmax joins (Longformer, StreamingLLM)
/// - `selected`: each query chooses by itself (selectors)
/// - `sums`: every query sees the sums of all keys (Performer)
enum class KeyRule { mask, groups, lists, parts, selected, sums };

/// The rule of the mechanism that has one (Mechanism::key_rule); checks refuse two.
KeyRule key_rule(const AttentionSpec& spec);

}  // namespace fovea
