// Device and number format as a user names them: `auto`, or one that must be available.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace fovea {

/// `automatic`: bfloat16 where the CPU multiplies it in hardware (AVX512_BF16, AMX) and on CUDA,
/// else float32. Training also takes float32 where that is multiplied faster.
enum class DtypeChoice { automatic, float32, bfloat16 };
std::span<const std::string_view> enum_names(DtypeChoice);  // auto, float32, bfloat16

enum class DeviceChoice { automatic, cpu, cuda };
std::span<const std::string_view> enum_names(DeviceChoice);  // auto, cpu, cuda

}  // namespace fovea
