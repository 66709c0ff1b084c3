// Steps timed by operator: the same steps, and FLOPs that follow from the model's sizes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "fovea/runtime/operator_profile.h"
#include "fovea/train/trainer.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace fovea::profile_test {
namespace {

using ::testing::HasSubstr;

class ProfiledRun : public ::testing::Test {
 protected:
  Recipe recipe(const std::string& name, int64_t steps = 20) {
    Recipe r = testing::tiny_recipe(folder_.path());
    r.run_folder = (folder_ / name).string();
    r.train.steps = steps;
    return r;
  }
  struct Outcome {
    std::vector<double> losses;
    std::optional<StepProfile> profile;
    int profiles = 0;
    std::string warnings;
  };
  static Outcome train(const Recipe& r, bool profiled) {
    Outcome out;
    TrainCallbacks callbacks;
    callbacks.step = [&](const TrainProgress& p) { out.losses.push_back(p.loss); };
    callbacks.warning = [&](std::string_view text) { out.warnings += text; };
    if (profiled) {
      callbacks.profile = [&](const StepProfile& told) {
        out.profile = told;
        ++out.profiles;
      };
    }
    Trainer(r, callbacks).run();
    return out;
  }
  static const ProfiledOperator& of(const StepProfile& profile, OperatorKind kind) {
    return profile.operators[static_cast<size_t>(kind)];
  }
  testing::TemporaryFolder folder_;
};

TEST_F(ProfiledRun, HasTheStepsOfAnyOtherAndTenAreTimed) {
  const Outcome plain = train(recipe("plain"), false), profiled = train(recipe("profiled"), true);
  EXPECT_EQ(plain.losses, profiled.losses);
  EXPECT_FALSE(plain.profile);
  ASSERT_EQ(profiled.profiles, 1);
  const StepProfile& profile = *profiled.profile;
  EXPECT_EQ(profile.steps(), 10);
  EXPECT_EQ(profile.tokens, 2 * 16);
  EXPECT_EQ(OperatorProfile::active(), nullptr);
  for (size_t step = 0; step < 10; ++step) {
    double sum = 0;
    for (const ProfiledOperator& o : profile.operators)
      sum += o.forward_seconds[step] + o.backward_seconds[step];
    EXPECT_NEAR(sum, profile.seconds[step], 1e-9);
  }
}

TEST_F(ProfiledRun, CountsTheFlopsOfTheModelsSizes) {
  const StepProfile profile = *train(recipe("flops"), true).profile;
  const double tokens = 2 * 16, width = 16, ffn = 32, kv = 8, vocab = 259, layers = 2, heads = 2,
               head_dim = 8, pairs = 2 * (16 * 17 / 2);
  const double weights =
      layers * (2 * width * width + 2 * width * kv + 3 * width * ffn) + vocab * width;
  // The gradients of the head's product are computed with the loss.
  const double head = 2 * tokens * vocab * width;
  const ProfiledOperator &products = of(profile, OperatorKind::product),
                         &norms = of(profile, OperatorKind::norm),
                         &attention = of(profile, OperatorKind::attention);
  EXPECT_EQ(products.forward_flops, 2 * tokens * weights + 2 * head);
  EXPECT_EQ(products.backward_flops, 4 * tokens * weights - 2 * head);
  EXPECT_EQ(norms.forward_flops, tokens * width * (4 * (2 * layers + 1) + 2 * layers));
  EXPECT_EQ(norms.backward_flops, 2 * norms.forward_flops);
  EXPECT_GT(attention.forward_flops, 0.0);
  EXPECT_LE(attention.forward_flops, layers * heads * 4 * head_dim * pairs);
  EXPECT_EQ(attention.backward_flops, 2 * attention.forward_flops);
  EXPECT_EQ(of(profile, OperatorKind::loss).forward_flops, 8 * tokens * vocab);
  EXPECT_GT(of(profile, OperatorKind::optimizer).forward_flops, weights * 16);
}

TEST_F(ProfiledRun, ARunOfFewStepsTellsWhatItHasOrThatItHasNone) {
  const Outcome seven = train(recipe("seven", 7), true), five = train(recipe("five", 5), true);
  EXPECT_EQ(seven.profile->steps(), 2);
  EXPECT_FALSE(five.profile);
  EXPECT_THAT(five.warnings, HasSubstr("no profile"));
}

}  // namespace
}  // namespace fovea::profile_test
