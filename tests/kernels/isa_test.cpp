// Which kernel serves a level of instructions.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/kernel_levels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

namespace fovea::kernels::isa_test {
namespace {

struct Table {
  int level = 0;
};
const Table& scalar() {
  static const Table table{0};
  return table;
}
const Table& avx2() {
  static const Table table{2};
  return table;
}
const Table& amx() {
  static const Table table{1000};
  return table;
}

int serves(std::span<const KernelLevel<Table>> levels, Isa in_force) {
  return serving_level(levels, in_force).table().level;
}

TEST(Isa, TheHighestLevelNotAboveTheOneInForceServes) {
  const KernelLevel<Table> levels[] = {{Isa::scalar, scalar}, {Isa::avx2, avx2}, {Isa::amx, amx}};
  EXPECT_EQ(serves(levels, Isa::scalar), 0);
  EXPECT_EQ(serves(levels, Isa::avx2), 2);
  EXPECT_EQ(serves(levels, Isa::avx512), 2) << "no kernels of its own";
  EXPECT_EQ(serves(levels, Isa::amx), 1000);
}

TEST(Isa, ABuildWithScalarKernelsAloneServesEveryLevel) {
  const KernelLevel<Table> levels[] = {{Isa::scalar, scalar}};
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::amx}) EXPECT_EQ(serves(levels, isa), 0);
}

TEST(Isa, TestsMeetTheKernelsOfEveryLevel) {
  EXPECT_TRUE(std::ranges::equal(built_isas(), known_isas()))
      << "configure with -DFOVEA_KERNELS=all";
}

}  // namespace
}  // namespace fovea::kernels::isa_test
