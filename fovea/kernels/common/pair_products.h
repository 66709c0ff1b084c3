// Products of pairs of bfloat16 numbers (AVX512_BF16): where they are faster than float32's.
//
// Intel's cores with that instruction set begin one such product in two cycles, and two of float32
// in one: 90 and 176 GFLOP/s on a core of model 207. AMD's are twice as fast as float32's.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/isa.h"

namespace fovea {

/// Whether the CPU is Intel's.
bool made_by_intel();

/// Whether kernels of avx512_bf16 that multiply pairs give way to those of avx512: on Intel's CPUs,
/// unless FOVEA_ISA is set.
bool pairs_give_way();
/// Whether kernels of bfloat16 numbers multiply pairs, or tiles of them.
bool multiplies_pairs();

}  // namespace fovea
