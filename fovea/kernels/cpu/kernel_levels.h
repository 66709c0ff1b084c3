// The choice among the tables of kernels (kernel_table.h) that this build has.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "fovea/kernels/common/bfloat16.h"
#include "fovea/kernels/common/pair_products.h"
#include "fovea/kernels/cpu/kernel_table.h"

namespace fovea::kernels {

template <class T>
struct AttentionTable;  // pointwise/attention_table.h
template <class T>
struct MixingTable;  // mixing/mixing_table.h
template <class T>
struct MixingDecodeTable;  // decode/mixing_decode_table.h
template <class T>
struct SelectorTable;  // decode/selector.h

/// A level of instructions with kernels of its own.
template <class Table>
struct KernelLevel {
  Isa isa = Isa::scalar;
  const Table& (*table)() = nullptr;
};

/// The levels of this build, ascending from scalar. The source that defines it is made by
/// cmake/FoveaKernels.cmake.
template <class Table>
std::span<const KernelLevel<Table>> kernel_levels();

/// The highest level not above the one in force.
template <class Table>
const KernelLevel<Table>& serving_level(std::span<const KernelLevel<Table>> levels, Isa in_force) {
  size_t n = levels.size() - 1;
  while (n > 0 && levels[n].isa > in_force) --n;
  return levels[n];
}

/// Tables whose avx512_bf16 differs from avx512 by products of pairs alone.
template <class Table>
inline constexpr bool kMultipliesPairs = false;
template <>
inline constexpr bool kMultipliesPairs<AttentionTable<BFloat16>> = true;
template <>
inline constexpr bool kMultipliesPairs<MixingTable<BFloat16>> = true;
template <>
inline constexpr bool kMultipliesPairs<MixingDecodeTable<BFloat16>> = true;
template <>
inline constexpr bool kMultipliesPairs<SelectorTable<BFloat16>> = true;

/// The kernels of chosen_isa(), or of the level below that serves it or is faster.
template <class Table>
const Table& chosen_kernels() {
  static const Table& chosen = []() -> const Table& {
    const auto levels = kernel_levels<Table>();
    const KernelLevel<Table>& best = serving_level(levels, chosen_isa());
    const bool slow = kMultipliesPairs<Table> && best.isa == Isa::avx512_bf16 && pairs_give_way();
    return slow ? serving_level(levels, Isa::avx512).table() : best.table();
  }();
  return chosen;
}

}  // namespace fovea::kernels
