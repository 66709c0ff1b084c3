// First numbers of parameters.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/parameters.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "fovea/base/files.h"
#include "fovea/base/rng.h"

namespace fovea::parameters_test {
namespace {

constexpr uint64_t kSeed = 7;
constexpr const char* kName = "model.layers.0.mlp.up_proj.weight";
constexpr int64_t kCount = 70'001;  // several blocks, the last one cut

// One number after the other, as the headers say.
at::Tensor one_by_one(const Init& init) {
  Rng rng(mix_seed(kSeed, fingerprint(kName)));
  const auto next = [&] {
    if (init.kind == Init::Kind::uniform) return 2.0 * rng.uniform() - 1.0;
    double z = rng.normal();
    while (init.kind == Init::Kind::truncated_normal && std::abs(z) > 3.0) z = rng.normal();
    return z;
  };
  at::Tensor x = at::empty({kCount}, at::kFloat);
  for (int64_t i = 0; i < kCount; ++i)
    x.mutable_data_ptr<float>()[i] = static_cast<float>(next() * init.value * init.scale);
  return x;
}

TEST(FirstNumbers, AreThoseOfOneSequenceWhateverTheNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const auto kind : {Init::Kind::uniform, Init::Kind::normal, Init::Kind::truncated_normal}) {
    const Init init{.kind = kind, .value = 0.3, .scale = 1.7};
    const at::Tensor expected = one_by_one(init);
    for (const int threads : {1, 2, 5}) {
      at::set_num_threads(threads);
      at::Tensor x = at::empty({kCount}, at::kFloat);
      initialise(x, init, kSeed, kName);
      EXPECT_TRUE(x.equal(expected)) << threads << " threads";
    }
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace fovea::parameters_test
