// The backend of a device: which kernels it has, and which problems it refuses.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/backend.h"

#include <gtest/gtest.h>

#include "fovea/base/error.h"

namespace fovea::kernels {
namespace {

int64_t rows_run = 0;

// A backend with one kernel, as a library that is loaded later would bring it.
class OneKernel final : public Backend {
 public:
  OneKernel() : Backend(only_swiglu()) {}
  std::string_view name() const override { return "one kernel"; }
  TileSizes tile_sizes() const override { return {.queries = 16, .keys = 16, .tile = 16}; }
  bool prefers_decode(const AttentionSizes&) const override { return false; }

 private:
  static Kernels only_swiglu() {
    Kernels kernels;
    kernels.Kernel<SwigluForward<float>>::run = [](const SwigluForward<float>& p) {
      rows_run += p.rows;
    };
    return kernels;
  }
};

TEST(Backend, OfADeviceIsFoundOnceItIsRegistered) {
  EXPECT_EQ(backend_of(DeviceKind::cpu), &cpu());
  ASSERT_EQ(backend_of(DeviceKind::cuda), nullptr);
  const OneKernel other;
  register_backend(DeviceKind::cuda, &other);
  EXPECT_EQ(backend_of(DeviceKind::cuda), &other);
  register_backend(DeviceKind::cuda, nullptr);
  EXPECT_EQ(backend_of(DeviceKind::cuda), nullptr);
  EXPECT_THROW(register_backend(DeviceKind::cpu, &other), ConfigError);
}

TEST(Backend, RunsTheKernelsThatItHasAndRefusesOthersByItsName) {
  const OneKernel backend;
  const SwigluForward<float> problem{.rows = 3};
  EXPECT_EQ(backend.why_not(problem), std::nullopt);
  backend.run(problem);
  EXPECT_EQ(rows_run, 3);
  const SwigluBackward<float> other;
  ASSERT_TRUE(backend.why_not(other).has_value());
  EXPECT_NE(backend.why_not(other)->find("one kernel"), std::string::npos);
  EXPECT_THROW(backend.run(other), UnsupportedError);
  EXPECT_THROW(backend.make_decoder<float>({}, 1), UnsupportedError);
}

TEST(Backend, OfTheCpuAnswersBySizesAndSettingsAlone) {
  const AttentionSizes fits{.heads = 2, .kv_heads = 1, .head_dim = 64, .value_dim = 64};
  AttentionSizes odd = fits;
  odd.head_dim = 63;
  EXPECT_EQ(cpu().why_not(AttentionForward<float>{.sizes = fits}), std::nullopt);
  EXPECT_TRUE(cpu().why_not(AttentionForward<float>{.sizes = odd}).has_value());
  EXPECT_TRUE(cpu().why_not(AttentionDecode<BFloat16>{.sizes = odd}).has_value());
  EXPECT_EQ(cpu().why_not(GroupedForward<float>{.sizes = fits}), std::nullopt);
  EXPECT_TRUE(
      cpu().why_not(GroupedForward<float>{.sizes = fits, .rule = {.dropout = 0.5f}}).has_value());
}

TEST(Backend, OfTheCpuHasEveryKernelAndNamesItsInstructionSet) {
  Kernels all;
  int64_t kinds = 0;
  all.each([&]<class Problem>(Kernel<Problem>&) {
    ++kinds;
    EXPECT_FALSE(cpu().isa<Problem>().empty());
  });
  EXPECT_GT(kinds, 50);
}

}  // namespace
}  // namespace fovea::kernels
