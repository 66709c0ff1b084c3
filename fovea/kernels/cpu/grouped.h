// Hard Focus on the CPU by a plan (kernels/common/grouped_plan.h): grouped sparse attention,
// forward and backward, on raw pointers (spec 11.5).
//
// A plan is a list of tiles for the pointwise kernels (attention.h) over keys in one or two orders:
//   far pass   queries and keys of a class (or group) in blocks; a row leaves its state: O,
//   reference,
//              sum
//   near pass  queries and keys in the tokens' order; a row begins with the states that far passes
//              left, so nothing is merged afterwards
// Backward runs the same tiles with P from the whole row's lse and D from its output; what the
// passes left is added in a fixed order. Memory beyond inputs and outputs is linear in the tokens,
// results are the same bits for any number of threads and any neighbours in the batch.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "fovea/kernels/common/grouped_plan.h"
#include "fovea/kernels/cpu/attention.h"

namespace fovea::kernels {

/// Why these settings have no grouped kernel; "" where they have: no position bias, no dropout.
std::string_view beyond_grouped_kernels(const LogitRule& rule);

template <class T>
struct GroupedForward {
  AttentionSizes sizes;
  LogitRule rule;
  std::span<const GroupedPlan> plans;  ///< one for all rows of the batch, or one each
  HeadRows<const T> q, k, v;
  HeadRows<T> out;
  float* lse = nullptr;    ///< [batch][heads][queries], includes the sink; may be null
  float* stats = nullptr;  ///< [batch][heads][queries][kRowStats]; may be null
};

template <class T>
struct GroupedBackward {
  AttentionSizes sizes;
  LogitRule rule;
  std::span<const GroupedPlan> plans;
  HeadRows<const T> q, k, v, out, dout;
  const float* lse = nullptr;   ///< of the forward pass
  const float* dlse = nullptr;  ///< [batch][heads][queries]; null: zeros
  HeadRows<T> dq, dk, dv;       ///< all elements are written
  float* dtau = nullptr;   ///< [batch][heads][queries], to be summed over heads; needs rule.tau
  float* dsink = nullptr;  ///< [batch][heads], to be summed over the batch; needs rule.sink_logit
};

/// For T = float and BFloat16. UnsupportedError for other widths and settings, ShapeError for sizes
/// that are not the plans'.
template <class T>
void run(const GroupedForward<T>& problem);
template <class T>
void run(const GroupedBackward<T>& problem);

/// The keys that one query sees, ascending: one scan over the memberships of keys at ascending
/// positions in one document (decoding). `positions` empty: key n stands at n. The query is the
/// last key.
std::vector<int32_t> keys_seen_by_last(const GroupedRule& rule, std::span<const uint64_t> members,
                                       std::span<const int64_t> positions = {});

}  // namespace fovea::kernels
