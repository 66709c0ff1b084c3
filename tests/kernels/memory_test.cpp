// Memory of packed operands and scratch.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "fovea/kernels/cpu/pointwise/attention_driver.h"

namespace fovea::kernels::memory_test {
namespace {

uintptr_t begin_of(const FloatBuffer& buffer) { return reinterpret_cast<uintptr_t>(buffer.data()); }

TEST(AttentionKernels, MuchMemoryBeginsAtAHugePageAndLittleAtACacheLine) {
  constexpr uintptr_t kHugePage = uintptr_t{1} << 21;
  const FloatBuffer little(100), much(3 << 20);
  EXPECT_EQ(begin_of(little) % 64, 0U);
  EXPECT_EQ(begin_of(much) % kHugePage, 0U);
  much.data()[(3 << 20) - 1] = 1.0f;
  EXPECT_EQ(much.data()[(3 << 20) - 1], 1.0f);
}

#ifdef NDEBUG
TEST(AttentionKernels, MemoryIsKeptFromCallToCallAndGrows) {
  float* const first = packed_memory(1000);
  EXPECT_EQ(packed_memory(500), first);
  float* const grown = packed_memory(2 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(grown) % (uintptr_t{1} << 21), 0U);
  EXPECT_EQ(packed_memory(1000), grown);
}
#else
TEST(AttentionKernels, MemoryOfChecksHoldsNaN) {
  for (const int64_t floats : {1000, 500, 2 << 20}) {
    float* const memory = packed_memory(floats);
    for (const int64_t n : {int64_t{0}, floats / 2, floats - 1}) {
      EXPECT_TRUE(std::isnan(memory[n])) << floats << " " << n;
      memory[n] = 1.0f;
    }
  }
}
#endif

}  // namespace
}  // namespace fovea::kernels::memory_test
