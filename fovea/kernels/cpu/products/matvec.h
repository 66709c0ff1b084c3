// Products of a few rows with matrices on the CPU (kernels/common/matvec.h).
//
// Parallel over outputs by OpenMP. One thread sums each output in a fixed order, so results have
// the same bits for any number of threads and any number of rows. The instruction set is
// chosen_isa().
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "fovea/kernels/common/matvec.h"

namespace fovea::kernels {

/// One parallel region.
void run(const MatVecs& p);
template <class T>
void run(const Int8Rounding<T>& p);
void run(const Unpacking& p);

/// Slice n of `slices` of the same, by the calling thread alone.
void run_slice(std::span<const MatVec> products, int64_t n, int64_t slices);

/// Outputs [begin, end) of one product, by the calling thread alone.
void run_range(const MatVec& product, int64_t begin, int64_t end);

/// y = d q of the blocks of x [n], what products with Activations::int8 read; by the calling
/// thread. n is a multiple of kBlock.
void round_to_int8(const float* x, int64_t n, float* y);

/// The functions of one instruction set, one thread.
struct MatVecTable {
  /// Outputs [begin, end) of kMatVecRows rows at most.
  void (*product)(const MatVec&, int64_t begin, int64_t end);
  void (*round_to_int8)(const float* x, int64_t n, float* y);
  /// Packed weights of outputs [begin, end) of `p`, which has no rows, as floats.
  void (*unpack)(const MatVec& p, int64_t begin, int64_t end, float* to);
};
/// Those of chosen_isa().
const MatVecTable& mat_vec_table();

/// Memory of the calling thread for at least `floats` numbers, aligned to cache lines, until its
/// next call.
float* mat_vec_scratch(int64_t floats);

}  // namespace fovea::kernels
