// Fused pointwise attention on the CPU, forward and backward, on raw pointers: the operations of
// kernels/common/contract.h.
//
// Masked-out tiles cost nothing; memory beyond inputs and outputs is linear in the tokens. Results
// are the same bits for any number of threads and any neighbours in the batch. Threads: OpenMP.
// Which instruction set runs: isa.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fovea/kernels/common/contract.h"

namespace fovea::kernels {

template <class T>
struct AttentionTable;  // attention_table.h

/// Whether reading keys where they lie is faster than packing them: up to 16 rows a key head.
bool prefers_decode(const AttentionSizes& sizes);

/// Why there is no kernel for a head of these widths. There is one for multiples of 8 from 8 to
/// 256.
std::optional<std::string> why_not_attention_kernels(int64_t head_dim, int64_t value_dim);

/// For T = float and BFloat16; `table`: other kernels than those of the instruction set in force,
/// for tests. UnsupportedError for other widths, ShapeError for impossible sizes.
template <class T>
void run(const AttentionForward<T>& problem, const AttentionTable<T>* table = nullptr);
template <class T>
void run(const AttentionBackward<T>& problem, const AttentionTable<T>* table = nullptr);
template <class T>
void run(const AttentionDecode<T>& problem, const AttentionTable<T>* table = nullptr);

/// The instruction set of these kernels for T, a name of kIsaNames.
template <class T>
std::string_view attention_isa();

}  // namespace fovea::kernels
