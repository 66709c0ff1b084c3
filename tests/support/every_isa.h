// Runs tests of this program again, once for each instruction set.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/kernels/common/pair_products.h"

namespace fovea::testing {

/// The instruction set whose kernels of float32 serve the one in force.
inline std::string_view isa_of_float32() {
  const Isa isa = chosen_isa() >= Isa::avx512      ? Isa::avx512
                  : chosen_isa() == Isa::neon_bf16 ? Isa::neon
                                                   : chosen_isa();
  return enum_names(isa)[static_cast<size_t>(isa)];
}

/// Expects that the tests of `filter` pass with every instruction set below the one in force, which
/// runs them in this process, and with neon_bf16. The sets run side by side: under the sanitizers
/// one takes minutes.
inline void expect_tests_pass_on_every_isa(const std::string& filter) {
  std::vector<std::pair<std::string, std::future<int>>> runs;
  for (const Isa isa : built_isas()) {
    const std::string name(enum_names(isa)[static_cast<size_t>(isa)]);
    const bool gave_way = isa == Isa::avx512_bf16 && !multiplies_pairs();
    if (isa == chosen_isa() && !gave_way) continue;
    if (isa > chosen_isa() && (isa != Isa::neon_bf16 || isa > found_isa())) {
      std::cout << "not run, above the instruction set in force: " << name << "\n";
      continue;
    }
    const std::string command =
        "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX OMP_NUM_THREADS=1 FOVEA_ISA=" + name +
        " '" + std::filesystem::read_symlink("/proc/self/exe").string() +
        "' --gtest_brief=1 --gtest_filter='" + filter + "' > /dev/null";
    runs.emplace_back(command, std::async(std::launch::async,
                                          [command] { return std::system(command.c_str()); }));
  }
  for (auto& [command, result] : runs) EXPECT_EQ(result.get(), 0) << command;
}

}  // namespace fovea::testing
