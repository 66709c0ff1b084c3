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

/// Why nothing can be computed on a GPU here; empty where it can.
const std::string& why_no_gpu();

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

/// Keeps freed memory at the end of the heap, up to 128 MiB, in the process. By default, a program
/// that frees such memory in every training step returns it to the system and faults it in again,
/// page by page. That costs up to a fifth of a small step. Blocks of 32 MiB and more still go back
/// when they are freed. Does nothing where the user has set MALLOC_TRIM_THRESHOLD_, or on another C
/// library than glibc.
void keep_freed_memory();

/// "0.1.0+<commit>".
std::string code_version();

/// {"cpu", "cores", "memory_bytes", "device", "torch", "fovea"}: recorded in run.json. The device
/// is "cpu" or "cuda:0 (the GPU's name)".
nlohmann::ordered_json machine_summary(at::Device device);
/// The same for a page: "CPU, 2 cores", and the GPU where it is the device.
std::string machine_text(at::Device device);

/// Name and memory of every NVIDIA GPU, as its driver says; empty without driver or GPU.
struct Gpu {
  std::string name;
  int64_t memory_bytes = 0;
  std::string id;  ///< 16 bytes, of no other GPU anywhere
};
std::vector<Gpu> list_gpus();

/// Bytes that programs may still take (MemAvailable of /proc/meminfo); 0 where it is not known.
int64_t available_memory_bytes();

}  // namespace fovea
