// One kernel a level of instruction sets (kernels/common/isa.h), and the choice among them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "fovea/kernels/common/isa.h"

/// For IsaLevels: a function that exists where the build has the kernels of that level. Only for
/// the sources that fovea/CMakeLists.txt tells what there is (fovea_kernel_drivers): so another set
/// of kernels compiles no other source anew.
#if defined(FOVEA_HAS_scalar)
#if defined(FOVEA_HAS_avx2)
#define FOVEA_AVX2(function) function
#else
#define FOVEA_AVX2(function) nullptr
#endif
#if defined(FOVEA_HAS_avx512)
#define FOVEA_AVX512(function) function
#else
#define FOVEA_AVX512(function) nullptr
#endif
#if defined(FOVEA_HAS_avx512_bf16)
#define FOVEA_AVX512_BF16(function) function
#else
#define FOVEA_AVX512_BF16(function) nullptr
#endif
#if defined(FOVEA_HAS_amx)
#define FOVEA_AMX(function) function
#else
#define FOVEA_AMX(function) nullptr
#endif
#endif

namespace fovea {

/// What a kernel has for each level, ascending; null where the level below serves it too.
template <class F>
struct IsaLevels {
  F* scalar;
  F* avx2 = nullptr;
  F* avx512 = nullptr;
  F* avx512_bf16 = nullptr;
  F* amx = nullptr;
};

/// The function of the highest level that is not above the one in force.
template <class F>
F* pick_by_isa(const IsaLevels<F>& levels, Isa in_force = chosen_isa()) {
  F* const ascending[] = {levels.scalar, levels.avx2, levels.avx512, levels.avx512_bf16,
                          levels.amx};
  size_t level = static_cast<size_t>(in_force);
  while (level > 0 && ascending[level] == nullptr) --level;
  return ascending[level];
}

}  // namespace fovea
