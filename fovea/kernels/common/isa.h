// Instruction sets of the CPU: the one that the machine offers, and the one in force, which
// FOVEA_ISA may lower.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "fovea/kernels/common/isa_level.h"

namespace fovea {

std::span<const std::string_view> enum_names(Isa);

/// The best level that this CPU and operating system offer.
Isa found_isa();

/// The levels of this kind of processor, ascending.
std::span<const Isa> known_isas();

/// The level in force: FOVEA_ISA names one of known_isas(), else found_isa(), or neon in place of
/// neon_bf16. ConfigError for an unknown name or a level that the machine or the build lacks. Read
/// once per process.
Isa chosen_isa();

/// The levels that this build has kernels for, ascending.
std::span<const Isa> built_isas();

/// True where bfloat16 products beat those of float32: AMX, AVX512_BF16 of others than Intel.
bool has_fast_bfloat16();

}  // namespace fovea
