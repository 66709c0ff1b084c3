// Which kernel serves a level of instructions.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/isa.h"

#include <gtest/gtest.h>

namespace fovea::isa_test {
namespace {

int scalar() { return 0; }
int avx2() { return 2; }
int avx512() { return 512; }
int amx() { return 1000; }

TEST(Isa, TheHighestLevelNotAboveTheOneInForceServes) {
  const IsaLevels<int()> levels{.scalar = scalar, .avx2 = avx2, .avx512 = avx512, .amx = amx};
  EXPECT_EQ(pick_by_isa(levels, Isa::scalar)(), 0);
  EXPECT_EQ(pick_by_isa(levels, Isa::avx2)(), 2);
  EXPECT_EQ(pick_by_isa(levels, Isa::avx512)(), 512);
  EXPECT_EQ(pick_by_isa(levels, Isa::avx512_bf16)(), 512) << "no kernel of its own";
  EXPECT_EQ(pick_by_isa(levels, Isa::amx)(), 1000);
}

TEST(Isa, ABuildWithScalarKernelsAloneServesEveryLevel) {
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::amx})
    EXPECT_EQ(pick_by_isa(IsaLevels<int()>{.scalar = scalar}, isa)(), 0);
}

#if defined(__x86_64__)
TEST(Isa, TestsMeetTheKernelsOfEveryLevel) {
  EXPECT_EQ(built_isas().size(), enum_names(Isa{}).size()) << "configure with -DFOVEA_KERNELS=all";
}
#endif

}  // namespace
}  // namespace fovea::isa_test
