// The instruction set of our kernels: detected, or forced by FOVEA_ISA.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

/// A function that exists where the build has x86-64 kernels, for IsaLevels.
#if defined(__x86_64__)
#define FOVEA_X86(function) function
#else
#define FOVEA_X86(function) nullptr
#endif

namespace fovea {

/// Ascending: each level includes the ones before it (amx needs avx512_bf16's companions too).
enum class Isa { scalar, avx2, avx512, avx512_bf16, amx };
std::span<const std::string_view> enum_names(Isa);

/// The best level that this CPU and operating system offer.
Isa found_isa();

/// The level in force: FOVEA_ISA=scalar|avx2|avx512|avx512_bf16|amx, else found_isa(). ConfigError
/// for an unknown name or a level that the machine lacks. Read once per process.
Isa chosen_isa();

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

/// True where bfloat16 matrix products have instructions of their own (AVX512_BF16 or AMX).
bool has_fast_bfloat16();

}  // namespace fovea
