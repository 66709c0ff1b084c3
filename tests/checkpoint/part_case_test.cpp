// Case files of the parts around attention: the numbers of scalar loops in float64, and what is
// refused.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/part_case.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::part_case_test {
namespace {

using namespace fovea::testing;

class PartCase : public ::testing::Test {
 protected:
  CaseResult run(const std::string& kind, const std::string& spec, const TensorMap& tensors,
                 const CaseOptions& options = {}) {
    const auto path = folder_ / "part.safetensors";
    write_safetensors(path, tensors, {{"kind", kind}, {"spec", spec}});
    return run_attention_case(path, options);
  }
  void expect_no_errors(const CaseResult& result, size_t expected) {
    EXPECT_EQ(result.errors.size(), expected);
    for (const auto& [name, error] : result.errors) EXPECT_LT(error, 1e-12) << name;
  }

  TemporaryFolder folder_;
};

TEST_F(PartCase, RopeTurnsPairsByTheirAngles) {
  const at::Tensor x = random_normal({2, 3, 5, 8}, 1), positions = at::tensor({0, 3, 4, 9, 100});
  at::Tensor expected = x.clone();
  for (int64_t n = 0; n < 2 * 3 * 5 * 3; ++n) {
    const int64_t c = n % 3, t = n / 3 % 5, h = n / 15 % 3, b = n / 45;
    const double angle = static_cast<double>(positions[t].item<int64_t>()) *
                         std::pow(500.0, -2.0 * static_cast<double>(c) / 6.0);
    const double low = x[b][h][t][c].item<double>(), high = x[b][h][t][c + 3].item<double>();
    expected[b][h][t][c] = low * std::cos(angle) - high * std::sin(angle);
    expected[b][h][t][c + 3] = high * std::cos(angle) + low * std::sin(angle);
  }
  const TensorMap tensors{{"x", x}, {"positions", positions}, {"expected_out", expected}};
  expect_no_errors(run("rope", R"({"theta": 500, "rotary_dim": 6})", tensors), 1);
  EXPECT_LT(run("rope", R"({"theta": 500, "rotary_dim": 6})", tensors, {.dtype = at::kFloat})
                .errors.at("out"),
            1e-5);
}

TEST_F(PartCase, SinkhornBalancesByTurns) {
  const int64_t n = 7, k = 3;
  const at::Tensor scores = random_normal({n, k}, 2);
  std::vector<double> a(n, 0.0), b(k, 0.0);
  const auto score = [&](int64_t i, int64_t c) { return scores[i][c].item<double>(); };
  for (int round = 0; round < 4; ++round) {
    for (int64_t c = 0; c < k; ++c) {
      double sum = 0.0;
      for (int64_t i = 0; i < n; ++i) sum += std::exp(score(i, c) + a[i]);
      b[c] = -std::log(sum);
    }
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0.0;
      for (int64_t c = 0; c < k; ++c) sum += std::exp(score(i, c) + b[c]);
      a[i] = -std::log(sum);
    }
  }
  const at::Tensor potentials = at::tensor(b, at::kDouble);
  expect_no_errors(run("sinkhorn", R"({"rounds": 4})",
                       {{"scores", scores},
                        {"expected_potentials", potentials - potentials.mean()},
                        {"expected_assignment", at::softmax(scores + potentials, -1)}}),
                   2);
}

TEST_F(PartCase, GroupsAreTheLargestScoresAndTheLowerAmongEquals) {
  const at::Tensor scores = at::tensor({1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0}).view({1, 2, 4}),
                   potentials = at::tensor({0.0, 0.0, 0.0, 2.5}, at::kDouble);
  expect_no_errors(run("groups", R"({"gate": "hard", "groups": 4, "top_k": 2})",
                       {{"scores", scores.to(at::kDouble)},
                        {"expected_members", at::tensor({6, 3}).view({1, 2})}}),
                   1);
  expect_no_errors(run("groups", R"({"gate": "hard", "groups": 4, "top_k": 2})",
                       {{"scores", scores.to(at::kDouble)},
                        {"potentials", potentials},
                        {"expected_groups", at::softmax(scores.to(at::kDouble) + potentials, -1)},
                        {"expected_members", at::tensor({6, 9}).view({1, 2})}}),
                   2);
}

TEST_F(PartCase, CentroidsFollowTheTokensThatAreNearest) {
  const int64_t h = 2, c = 3, t = 6, d = 4;
  const at::Tensor q = random_normal({1, h, t, d}, 3), k = random_normal({1, 1, t, d}, 4),
                   centroids = random_normal({h, c, d}, 5);
  const at::Tensor sizes = at::full({h, c}, 2.0, at::kDouble), sums = centroids * 2.0;
  at::Tensor counts = at::zeros({h, c}, at::kDouble), totals = at::zeros({h, c, d}, at::kDouble);
  at::Tensor routes[2] = {at::zeros({1, h, t}, at::kLong), at::zeros({1, h, t}, at::kLong)};
  for (int64_t n = 0; n < 2 * h * t; ++n) {
    const int64_t i = n % t, head = n / t % h, which = n / t / h;
    const at::Tensor x = which == 0 ? q[0][head][i] : k[0][0][i], centred = x - x.mean();
    const at::Tensor normed = centred / (centred.square().mean() + 1e-6).sqrt();
    const int64_t own = at::mv(centroids[head], normed).argmax().item<int64_t>();
    routes[which][0][head][i] = own;
    counts[head][own] += 1.0;
    totals[head][own] += normed;
  }
  const at::Tensor new_sizes = 0.75 * sizes + 0.25 * counts, all = new_sizes.sum(-1, true),
                   new_sums = 0.75 * sums + 0.25 * totals;
  expect_no_errors(run("centroids", R"({"clusters": 3, "decay": 0.75})",
                       {{"q", q},
                        {"k", k},
                        {"centroids", centroids},
                        {"sizes", sizes},
                        {"sums", sums},
                        {"expected_query_routes", routes[0]},
                        {"expected_key_routes", routes[1]},
                        {"expected_sizes", new_sizes},
                        {"expected_sums", new_sums},
                        {"expected_centroids",
                         new_sums / ((new_sizes + 1e-5) / (all + 3e-5) * all).unsqueeze(-1)}}),
                   5);
}

TEST_F(PartCase, RefusesOtherKindsTensorsAndPathsByName) {
  const TensorMap scores{{"scores", random_normal({4, 2}, 1)}};
  EXPECT_ERROR(InputError, run("sinkhorm", "{}", scores), "sinkhorm", "sinkhorn");
  EXPECT_ERROR(InputError, run("sinkhorn", "{}", {{"score", random_normal({4, 2}, 1)}}),
               "'scores'");
  EXPECT_ERROR(InputError, run("sinkhorn", "{}", {{"scores", at::ones({4, 2}, at::kLong)}}),
               "floating", "Long");
  TensorMap unknown = scores;
  unknown["expected_potential"] = at::ones({2});
  EXPECT_ERROR(InputError, run("sinkhorn", "{}", unknown), "expected_potential",
               "expected_potentials");
  EXPECT_ERROR(ConfigError, run("sinkhorn", R"({"round": 3})", scores), "round", "rounds");
  EXPECT_ERROR(UnsupportedError, run("sinkhorn", "{}", scores, {.path = CasePath::fused}), "path");
  EXPECT_ERROR(UnsupportedError, run("sinkhorn", "{}", scores, {.gradient_seed = 3}), "gradients");
  EXPECT_ERROR(InputError,
               run("rope", "{}",
                   {{"x", random_normal({1, 1, 2, 8}, 1)},
                    {"positions", at::tensor({int64_t{0}, int64_t{1} << 40})}}),
               "positions");
}

}  // namespace
}  // namespace fovea::part_case_test
