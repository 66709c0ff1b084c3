// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/machine.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <dlfcn.h>
#include <malloc.h>
#include <sys/resource.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "fovea/base/error.h"
#include "fovea/runtime/device_for_tests.h"

namespace fovea {
namespace {

/// The value of the first "key : value" line of a /proc file, "" where there is none.
std::string proc_value(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return colon == std::string::npos || start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

std::string device_text(at::Device device) {
  const std::vector<Gpu> gpus = device.is_cuda() ? list_gpus() : std::vector<Gpu>{};
  const auto index = static_cast<size_t>(std::max<c10::DeviceIndex>(device.index(), 0));
  return index < gpus.size() ? fmt::format("{} ({})", device.str(), gpus[index].name)
                             : device.str();
}

/// nullptr where torch has none. It has no devices, and throws, before torch has begun to use CUDA.
c10::DeviceAllocator* cuda_allocator() {
  at::globalContext().lazyInitDevice(at::kCUDA);
  return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
}

/// Makes torch's CUDA half usable, "" or what is missing. It is a library of its own with gigabytes
/// of requirements, so programs do not link it. It must be loaded before anything asks torch about
/// CUDA: torch remembers the first answer.
std::string load_cuda() {
  if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) return "this machine has no NVIDIA driver";
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return fmt::format("torch's CUDA library cannot be loaded ({}): run `make gpu` once",
                       dlerror());
  }
  if (at::detail::getCUDAHooks().deviceCount() > 0) return "";
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "no GPU is visible"
                            : fmt::format("no GPU is visible (CUDA_VISIBLE_DEVICES='{}')", visible);
}

std::optional<at::Device> device_for_tests;

}  // namespace

DeviceForTests::DeviceForTests(at::Device device) { device_for_tests = device; }
DeviceForTests::~DeviceForTests() { device_for_tests.reset(); }

bool cpu_has_bfloat16() {
  std::istringstream flags(proc_value("/proc/cpuinfo", "flags"));
  for (std::string flag; flags >> flag;) {
    if (flag == "avx512_bf16" || flag == "amx_bf16") return true;
  }
  return false;
}

const std::string& why_no_gpu() {
  static const std::string missing = load_cuda();
  return missing;
}

at::Device choose_device(DeviceChoice choice) {
  if (device_for_tests) return *device_for_tests;
  if (choice == DeviceChoice::cpu) return at::kCPU;
  const std::string& missing = why_no_gpu();
  if (choice == DeviceChoice::cuda && !missing.empty()) {
    fail<ConfigError>("recipe", "'train.device' is cuda, but {}; use device: auto or cpu", missing);
  }
  return missing.empty() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

at::ScalarType choose_dtype(DtypeChoice choice, at::Device device) {
  if (choice == DtypeChoice::float32) return at::kFloat;
  if (choice == DtypeChoice::bfloat16) return at::kBFloat16;
  return device.is_cuda() || cpu_has_bfloat16() ? at::kBFloat16 : at::kFloat;
}

int64_t peak_memory_bytes(at::Device device) {
  if (device.is_cuda()) {
    c10::DeviceAllocator* allocator = cuda_allocator();
    if (allocator == nullptr) return 0;
    const auto stats = allocator->getDeviceStats(std::max<c10::DeviceIndex>(device.index(), 0));
    return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
        .peak;
  }
  const std::string line = proc_value("/proc/self/status", "VmHWM");
  if (!line.empty()) return std::stoll(line) * 1024;  // kB
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

int64_t resident_memory_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

void reset_peak_memory(at::Device device) {
  if (device.is_cuda()) {
    if (c10::DeviceAllocator* allocator = cuda_allocator()) {
      allocator->resetPeakStats(std::max<c10::DeviceIndex>(device.index(), 0));
    }
    return;
  }
  std::ofstream("/proc/self/clear_refs") << "5";  // 5: reset the high-water mark of resident memory
}

void keep_freed_memory() {
#ifdef __GLIBC__
  if (std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr) return;
  // Either call ends glibc's own adapting of both numbers, so both are set: 32 MiB is its maximum.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 128 << 20);
#endif
}

nlohmann::ordered_json machine_summary(at::Device device) {
  const std::string memory = proc_value("/proc/meminfo", "MemTotal");
  return {{"cpu", proc_value("/proc/cpuinfo", "model name")},
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", memory.empty() ? 0 : std::stoll(memory) * 1024},
          {"device", device_text(device)},
          {"torch", TORCH_VERSION},
          {"fovea", code_version()}};
}

std::string machine_text(at::Device device) {
  return fmt::format("{}, {} cores{}", proc_value("/proc/cpuinfo", "model name"),
                     std::thread::hardware_concurrency(),
                     device.is_cpu() ? "" : ", " + device_text(device));
}

std::vector<Gpu> list_gpus() {
  // The driver's own interface: it is there wherever a GPU is, whatever torch was built with.
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) return {};
  const auto find = [&]<class F>(const char* name, F*& function) {
    function = reinterpret_cast<F*>(dlsym(driver, name));
    return function != nullptr;
  };
  int (*init)(unsigned) = nullptr;
  int (*count_devices)(int*) = nullptr;
  int (*get_name)(char*, int, int) = nullptr;
  int (*get_memory)(size_t*, int) = nullptr;
  int (*get_id)(char*, int) = nullptr;
  int count = 0;
  if (!find("cuInit", init) || !find("cuDeviceGetCount", count_devices) ||
      !find("cuDeviceGetName", get_name) || !find("cuDeviceTotalMem_v2", get_memory) ||
      !find("cuDeviceGetUuid_v2", get_id) || init(0) != 0 || count_devices(&count) != 0)
    return {};
  std::vector<Gpu> gpus;
  for (int i = 0; i < count; ++i) {  // device handles are their numbers
    char name[256] = {}, id[16] = {};
    size_t bytes = 0;
    if (get_name(name, sizeof name, i) != 0 || get_memory(&bytes, i) != 0 || get_id(id, i) != 0)
      continue;
    gpus.push_back({name, static_cast<int64_t>(bytes), std::string(id, sizeof id)});
  }
  return gpus;
}

int64_t available_memory_bytes() {
  const std::string memory = proc_value("/proc/meminfo", "MemAvailable");
  return memory.empty() ? 0 : std::stoll(memory) * 1024;
}

std::string code_version() { return FOVEA_VERSION; }

}  // namespace fovea
