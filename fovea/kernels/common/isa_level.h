// The names of instruction sets.
//
// No inline functions and no containers here: sources compiled with wide instructions include it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea {

/// Ascending on processors of one kind (neon, neon_bf16: AArch64, the others: x86-64): each level
/// includes the ones before it (amx needs avx512_bf16's companions too; neon_bf16 is BF16 and
/// I8MM).
enum class Isa { scalar, neon, neon_bf16, avx2, avx512, avx512_bf16, amx };

/// By level.
inline constexpr const char* kIsaNames[] = {"scalar", "neon",        "neon_bf16", "avx2",
                                            "avx512", "avx512_bf16", "amx"};

}  // namespace fovea
