// What keeps a step on the device: numbers that are read together, state with a copy on the host,
// first numbers; and what happens where its memory ends.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fovea/nn/host_copy.h"
#include "fovea/nn/parameters.h"
#include "fovea/runtime/device_for_tests.h"
#include "fovea/runtime/memory_shortage.h"
#include "fovea/runtime/reading.h"
#include "fovea/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_device.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace fovea::step_parts_test {
namespace {

using namespace fovea::testing;

at::Tensor there(at::ArrayRef<double> numbers) {
  return at::tensor(numbers, at::kDouble).to(fake_device());
}

TEST(Reading, ManyComeWithOneWaitAndStay) {
  const Reading one(there({1.5})), three(there({1, 2, 3})), here(4.0);
  const Reading* const all[] = {&one, &three, &here};
  const CountedPulls pulls;
  Reading::together(all);
  EXPECT_EQ(pulls.count(), 1);
  EXPECT_EQ(one.value(), 1.5);
  EXPECT_EQ(three.value(2), 3.0);
  EXPECT_EQ(here.value(), 4.0);
  Reading::together(all);
  EXPECT_EQ(pulls.count(), 1);
}

TEST(HostCopy, IsFetchedAgainOnlyWhereSomebodyElseWrote) {
  const at::Tensor x = there({1, 2});
  HostCopy copy;
  const CountedPulls pulls;
  EXPECT_EQ(copy.of(x)[1].item<double>(), 2.0);
  copy.write(x, at::tensor({3.0, 4.0}, at::kDouble));
  EXPECT_EQ(copy.of(x)[1].item<double>(), 4.0);
  EXPECT_EQ(pulls.count(), 1);
  x.add_(1.0);
  EXPECT_EQ(copy.of(x)[1].item<double>(), 5.0);
  EXPECT_EQ(pulls.count(), 2);
}

TEST(FirstNumbers, AreThoseOfTheCpuOnADevice) {
  for (const auto kind : {Init::Kind::zeros, Init::Kind::ones, Init::Kind::constant,
                          Init::Kind::uniform, Init::Kind::normal, Init::Kind::truncated_normal}) {
    const Init init{.kind = kind, .value = 0.3, .scale = 1.7};
    at::Tensor here = at::empty({33, 7}, at::kFloat), away = here.to(fake_device());
    initialise(here, init, 3, "weight");
    initialise(away, init, 3, "weight");
    EXPECT_TRUE(away.cpu().equal(here));
  }
}

TEST(DeviceMemory, WhereItEndsTheTrainerSaysWhatToLower) {
  const TemporaryFolder folder;
  const DeviceForTests device(fake_device());
  const Recipe recipe = tiny_recipe(folder.path());
  const FakeMemoryLimit limit(1 << 16);
  EXPECT_ERROR(MemoryError, Trainer(recipe).run(), "MB of the GPU's memory were asked for",
               "'train.batch_rows' (now 2)");
}

TEST(DeviceMemory, TheSizeIsReadInEveryUnit) {
  const auto shortage = [](const char* text) {
    try {
      throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, text);
    } catch (const std::exception&) {
      return memory_shortage().value_or("");
    }
  };
  EXPECT_EQ(shortage("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ..."),
            "21 MB of the GPU's memory were asked for");
  EXPECT_EQ(shortage("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has ..."),
            "1.6 GB of the GPU's memory were asked for");
  EXPECT_EQ(
      shortage("DefaultCPUAllocator: not enough memory: you tried to allocate 3000000 bytes."),
      "3 MB were asked for");
}

}  // namespace
}  // namespace fovea::step_parts_test
