// fovea info: what this build and machine are.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "fovea/attention/cuda_library.h"
#include "fovea/data/config.h"
#include "fovea/kernels/common/isa.h"
#include "fovea/nn/matmul.h"
#include "fovea/runtime/device_exchange.h"
#include "fovea/runtime/machine.h"

namespace fovea::cli {
namespace {

nlohmann::ordered_json gpus() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Gpu& gpu : list_gpus())
    list.push_back({{"name", gpu.name}, {"memory_bytes", gpu.memory_bytes}});
  return list;
}

/// The file that holds the function at `address`.
std::string file_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr
             ? std::filesystem::weakly_canonical(info.dli_fname).string()
             : "";
}

void run(const Globals& globals) {
  const std::string version = code_version();
  const size_t plus = version.find('+');
  const at::Device device = choose_device(DeviceChoice::automatic);
  const nlohmann::ordered_json machine = machine_summary(device);
  nlohmann::ordered_json info{
      {"version", version.substr(0, plus)},
      {"commit", plus == version.npos ? "unknown" : version.substr(plus + 1)},
      {"torch", TORCH_VERSION},
      {"cpu", machine["cpu"]},
      {"isa_found", enum_name(found_isa())},
      {"isa_chosen", enum_name(chosen_isa())},
      {"bfloat16_in_hardware", found_isa() >= Isa::avx512_bf16 || found_isa() == Isa::neon_bf16},
      {"linear_float32", enum_name(linear_library())},
      {"linear_bfloat16", enum_name(bfloat16_product())},
      {"cores", machine["cores"]},
      {"threads", at::get_num_threads()},
      {"device", device.str()},
      {"why_no_gpu", why_no_gpu()},
      {"why_no_cuda_kernels", device.is_cuda() ? why_no_cuda_kernels() : why_no_gpu()},
      {"why_no_nccl", why_no_nccl()},
      {"gpus", gpus()},
      {"memory_bytes", machine["memory_bytes"]},
      {"memory_available_bytes", available_memory_bytes()},
      {"paths",
       {{"program", std::filesystem::canonical("/proc/self/exe").string()},
        {"torch", file_of(reinterpret_cast<const void*>(&at::get_num_threads))},
        {"data_cache", default_data_cache().string()}}}};
  if (globals.json) {
    print(info.dump(2) + "\n");
    return;
  }
  std::string out;
  const std::function<void(const nlohmann::ordered_json&, const std::string&)> add =
      [&](const auto& node, const std::string& prefix) {
        for (const auto& [key, value] : node.items()) {
          if (value.is_object()) {
            add(value, prefix + key + ".");
          } else {
            out +=
                fmt::format("{:<28} {}\n", prefix + key,
                            value.is_string() ? value.template get<std::string>() : value.dump());
          }
        }
      };
  add(info, "");
  print(out);
}

}  // namespace

Verb add_info_verb(Command& app, Globals& globals) {
  Command* verb = app.add_subcommand(
      "info", "version, instruction sets found and chosen, threads, device, memory, paths");
  add_global_options(*verb, globals);
  return {verb, [&globals] { run(globals); }};
}

}  // namespace fovea::cli
