// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/average.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace fovea::average_test {
namespace {

class Average : public ::testing::Test {
 protected:
  std::filesystem::path save(const char* name, uint64_t seed, const ModelConfig& config) {
    save_model(folder_ / name, Transformer(config, seed), *byte_tokenizer());
    return folder_ / name;
  }
  testing::TemporaryFolder folder_;
};

TEST_F(Average, EveryWeightIsTheMeanOfThatWeight) {
  const ModelConfig config = testing::tiny_config();
  const Transformer a(config, 1), b(config, 2), c(config, 3);
  const LoadedModel mean =
      average_models({save("a", 1, config), save("b", 2, config), save("c", 3, config)});
  for (const Parameter& p : mean.model.parameters().all()) {
    const auto of = [&](const Transformer& model) {
      return model.parameters().find(p.name)->value.detach().to(at::kDouble);
    };
    EXPECT_TRUE(at::equal(p.value.detach(), ((of(a) + of(b) + of(c)) / 3).to(at::kFloat)))
        << p.name;
  }
}

TEST_F(Average, OneModelStaysAsItIsAndNoneIsRefused) {
  const ModelConfig config = testing::tiny_config();
  const Transformer a(config, 1);
  const LoadedModel mean = average_models({save("a", 1, config)});
  for (const Parameter& p : mean.model.parameters().all())
    EXPECT_TRUE(at::equal(p.value, a.parameters().find(p.name)->value)) << p.name;
  EXPECT_ERROR(CheckpointError, average_models({}), "at least one");
}

TEST_F(Average, ModelsOfAnotherConfigurationAreRefusedByKey) {
  ModelConfig other = testing::tiny_config();
  other.rope.theta = 777;
  const auto a = save("a", 1, testing::tiny_config()), b = save("b", 1, other);
  EXPECT_ERROR(CheckpointError, average_models({a, b}), "theta", "777");
}

}  // namespace
}  // namespace fovea::average_test
