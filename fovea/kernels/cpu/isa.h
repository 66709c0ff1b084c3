// Which instruction set our kernels use: found, or forced by FOVEA_ISA.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace fovea {

/// Ascending: each level includes the ones before it (amx needs avx512_bf16's companions too).
enum class Isa { scalar, avx2, avx512, avx512_bf16, amx };
std::span<const std::string_view> enum_names(Isa);

/// The best level that this CPU and operating system offer.
Isa found_isa();

/// The level in force: FOVEA_ISA=scalar|avx2|avx512|avx512_bf16|amx, else found_isa(). ConfigError
/// for an unknown name or a level that the machine lacks. Read once per process.
Isa chosen_isa();

/// True where bfloat16 matrix products have instructions of their own (AVX512_BF16 or AMX).
bool has_fast_bfloat16();

}  // namespace fovea
