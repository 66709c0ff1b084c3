// Hard Focus on the CPU by a plan (kernels/common/grouped_plan.h): grouped sparse attention,
// forward and backward, on raw pointers (spec 11.5).
//
// A plan is a list of tiles for the pointwise kernels (attention.h) over keys in one or two orders:
// clang-format off
//   far pass   queries and keys of a class (or group) in blocks; a row writes its state
//              (O, reference, sum)
//   near pass  queries and keys in the tokens' order; a row begins with the merged states of
//              its far passes, so nothing is merged afterwards
// clang-format on
// Backward runs the same tiles with P from the whole row's lse and D from its output; the sums
// of the passes are added in a fixed order. Memory beyond inputs and outputs is linear in the
// tokens, results are the same bits for any number of threads and any neighbours in the batch.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fovea/kernels/common/contract.h"
#include "fovea/kernels/cpu/pointwise/attention.h"

namespace fovea::kernels {

/// Why these settings have no grouped kernel: a position bias, dropout, a soft gate.
std::optional<std::string> why_not_grouped_kernels(const ScoreParameters& rule);

/// For T = float and BFloat16. UnsupportedError for other widths and settings, ShapeError for sizes
/// that are not the plans'.
template <class T>
void run(const GroupedForward<T>& problem, const AttentionTable<T>* table = nullptr);
template <class T>
void run(const GroupedBackward<T>& problem, const AttentionTable<T>* table = nullptr);

void run(const KeysOfLast& problem);

}  // namespace fovea::kernels
