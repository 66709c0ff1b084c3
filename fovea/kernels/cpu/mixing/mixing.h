// Fused Multi-Token and talking-heads attention on the CPU, on raw pointers: the operations of
// kernels/common/mixing.h.
//
// Memory beyond inputs and outputs is linear in the tokens. Results are the same bits for any
// number of threads and any neighbours in the batch. Threads: OpenMP. Which instruction set runs:
// isa.h. Denormal numbers count as zero inside.
//
// Shared by forward and backward:
//   mixing_seen.h         the pairs that are seen, as bits
//   mixing_plan.h         strips and their steps
//   mixing_convolution.h  the key-query convolution, in registers
//   mixing_heads.h        the mixing of heads, in registers
//   mixing_table.h        sizes, and the kernels of an instruction set
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fovea/kernels/common/mixing.h"

namespace fovea::kernels {

template <class T>
struct MixingTable;  // mixing_table.h

/// Why the mixing kernels cannot run a problem of these sizes; the same for forward and backward.
/// Says in words what is expected and what was given.
std::optional<std::string> why_not_mixing_kernels(const AttentionSizes& sizes,
                                                  const MixingRule& mixing);

/// For T = float and BFloat16; `table`: other kernels than those of the instruction set in force,
/// for tests. UnsupportedError where why_not_mixing_kernels() has a reason, ShapeError for
/// impossible sizes.
template <class T>
void run(const MixingForward<T>& problem, const MixingTable<T>* table = nullptr);
template <class T>
void run(const MixingBackward<T>& problem, const MixingTable<T>* table = nullptr);

/// Bytes of memory beyond inputs and outputs that run() takes, for all threads together.
template <class T>
int64_t scratch_bytes(const MixingForward<T>& problem);
template <class T>
int64_t scratch_bytes(const MixingBackward<T>& problem);

/// The instruction set of these kernels for T.
template <class T>
std::string_view mixing_isa();

}  // namespace fovea::kernels
