// Facts about the machine: number formats, memory, names.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "fovea/runtime/choices.h"

namespace fovea {

/// ConfigError for `cuda` where this machine or build has none.
at::Device choose_device(DeviceChoice choice);
at::ScalarType choose_dtype(DtypeChoice choice, at::Device device);
/// Whether the CPU multiplies bfloat16 in hardware (AVX512_BF16 or AMX_BF16).
bool cpu_has_bfloat16();

/// Largest resident memory of this process in bytes since reset_peak_memory() (VmHWM); on CUDA the
/// device's allocated peak.
int64_t peak_memory_bytes(at::Device device = at::kCPU);
/// Resident memory of this process now, in bytes; 0 where it is not known.
int64_t resident_memory_bytes();
/// Starts a new measurement of the peak. Does nothing where the kernel does not allow it.
void reset_peak_memory(at::Device device = at::kCPU);

/// "0.1.0+<commit>".
std::string code_version();

/// {"cpu", "cores", "memory_bytes", "device", "torch", "fovea"}: recorded in run.json.
nlohmann::ordered_json machine_summary(at::Device device);

/// Name and memory of every NVIDIA GPU, as its driver says; empty without driver or GPU.
struct Gpu {
  std::string name;
  int64_t memory_bytes = 0;
};
std::vector<Gpu> list_gpus();

/// Bytes that programs may still take (MemAvailable of /proc/meminfo); 0 where it is not known.
int64_t available_memory_bytes();

}  // namespace fovea
