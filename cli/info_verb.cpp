// fovea info: what this build and machine are.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "fovea/data/config.h"
#include "fovea/kernels/cpu/isa.h"
#include "fovea/nn/matmul.h"
#include "fovea/train/machine.h"

namespace fovea::cli {
namespace {

void run(const Globals& globals) {
  nlohmann::ordered_json info{{"version", code_version()},
                              {"torch", TORCH_VERSION},
                              {"isa_found", enum_name(found_isa())},
                              {"isa_chosen", enum_name(chosen_isa())},
                              {"linear_float32", enum_name(linear_library())},
                              {"bfloat16_in_hardware", has_fast_bfloat16()},
                              {"threads", at::get_num_threads()},
                              {"machine", machine_summary(choose_device(DeviceChoice::automatic))},
                              {"data_cache", default_data_cache().string()}};
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

Verb add_info_verb(CLI::App& app, Globals& globals) {
  CLI::App* verb = app.add_subcommand(
      "info", "version, instruction sets found and chosen, threads, device, memory, paths");
  add_global_options(*verb, globals);
  return {verb, [&globals] { run(globals); }};
}

}  // namespace fovea::cli
