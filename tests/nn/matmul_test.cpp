// The linear layers' product against float64, whichever library computes it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/matmul.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "fovea/config/fields.h"

namespace fovea::matmul_test {
namespace {

at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

class LinearProduct : public ::testing::TestWithParam<LinearLibrary> {};
INSTANTIATE_TEST_SUITE_P(Libraries, LinearProduct,
                         ::testing::Values(LinearLibrary::torch, LinearLibrary::onednn),
                         [](const auto& x) { return std::string(enum_name(x.param)); });

TEST_P(LinearProduct, EqualsTheFloat64ProductForAnySizeAndStride) {
  uint64_t seed = 0;
  for (const auto& [rows, in, out] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {3, 19, 97}, {257, 97, 33}, {2, 1025, 257}, {1025, 64, 259}}) {
    const at::Tensor x = random({rows, in}, ++seed), w = random({out, in}, ++seed);
    const at::Tensor truth = at::matmul(x, w.t());
    const at::Tensor transposed = w.t().contiguous().to(at::kFloat).t();
    for (const at::Tensor& weight : {w.to(at::kFloat), transposed}) {
      const at::Tensor y = linear_product(x.to(at::kFloat), weight, GetParam());
      ASSERT_EQ(y.sizes(), truth.sizes());
      EXPECT_LT((y.to(at::kDouble) - truth).abs().max().item<double>(),
                1e-5 * truth.abs().max().item<double>())
          << rows << " x " << in << " x " << out;
    }
  }
}

TEST_P(LinearProduct, KeepsLeadingDimensionsAndTakesSlices) {
  const at::Tensor wide = random({6, 50, 128}, 1), w = random({192, 64}, 2);
  const at::Tensor x = wide.narrow(2, 32, 64);
  const at::Tensor y =
      linear_product(wide.to(at::kFloat).narrow(2, 32, 64), w.to(at::kFloat), GetParam());
  EXPECT_EQ(y.sizes(), at::IntArrayRef({6, 50, 192}));
  EXPECT_LT((y.to(at::kDouble) - at::matmul(x, w.t())).abs().max().item<double>(), 1e-3);
}

TEST_P(LinearProduct, TheSameInputsGiveTheSameBits) {
  const at::Tensor x = random({300, 96}, 1).to(at::kFloat), w = random({200, 96}, 2).to(at::kFloat);
  EXPECT_TRUE(at::equal(linear_product(x, w, GetParam()), linear_product(x, w, GetParam())));
}

/// The largest |y - truth|, in half units of the last place of a small bfloat16 significand.
double bfloat16_error(const at::Tensor& y, const at::Tensor& truth) {
  const at::Tensor unit = truth.abs().clamp_min(1e-2) / 256.0;
  return ((y.to(at::kDouble) - truth).abs() / unit).max().item<double>();
}

// The last sizes go in several stretches of rows.
TEST(WidenedProduct, IsTheFloat64ProductRoundedOnce) {
  uint64_t seed = 300;
  for (const auto& [rows, in, out] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {3, 19, 97}, {257, 97, 33}, {0, 8, 8}, {130, 2, 70000}}) {
    const at::Tensor x = random({2, rows, in}, ++seed).to(at::kBFloat16),
                     w = random({out, in}, ++seed).to(at::kBFloat16);
    const at::Tensor truth = at::matmul(x.to(at::kDouble), w.to(at::kDouble).t());
    for (const at::Tensor& weight : {w, w.t().contiguous().t()}) {
      const at::Tensor y = widened_product(x, weight);
      ASSERT_EQ(y.sizes(), truth.sizes());
      ASSERT_EQ(y.scalar_type(), at::kBFloat16);
      if (rows == 0) continue;
      EXPECT_LT(bfloat16_error(y, truth), 1.01) << rows << " x " << in << " x " << out;
    }
  }
}

TEST(WeightGradient, IsTheFloat64ProductInEitherForm) {
  for (const auto& [rows, in, out] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {37, 19, 97}, {260, 2, 70000}}) {
    const at::Tensor x = random({rows, in}, 1).to(at::kBFloat16),
                     dy = random({rows, out}, 2).to(at::kBFloat16);
    const at::Tensor truth = at::matmul(dy.to(at::kDouble).t(), x.to(at::kDouble));
    const at::Tensor wide = weight_gradient(dy, x, Bfloat16Product::widened);
    EXPECT_EQ(wide.scalar_type(), at::kFloat);
    EXPECT_LT((wide.to(at::kDouble) - truth).abs().max().item<double>(),
              1e-5 * truth.abs().max().item<double>());
    const at::Tensor rounded = weight_gradient(dy, x, Bfloat16Product::native);
    EXPECT_EQ(rounded.scalar_type(), at::kBFloat16);
    EXPECT_LT((rounded.to(at::kDouble) - truth).abs().max().item<double>(),
              1e-2 * truth.abs().max().item<double>());
    EXPECT_TRUE(at::equal(weight_gradient(dy.to(at::kFloat), x.to(at::kFloat)),
                          at::mm(dy.to(at::kFloat).t(), x.to(at::kFloat))));
  }
}

// The definition in float64 of the same stored weights; odd sizes have tails in every loop.
TEST(FewRowsProduct, EqualsTheFloat64ProductOfTheStoredWeights) {
  uint64_t seed = 100;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 13, 16}) {
      for (const auto& [in, a, b] : std::vector<std::array<int64_t, 3>>{
               {1, 1, 2}, {63, 3, 19}, {97, 33, 64}, {1025, 257, 5}}) {
        const at::Tensor x = random({1, rows, in}, ++seed).to(dtype);
        const std::vector<at::Tensor> w{random({a, in}, ++seed).to(dtype),
                                        random({b, in}, ++seed).to(dtype)};
        ASSERT_EQ(is_few_rows(x, w), rows <= 4);
        const at::Tensor y = few_rows_product(x, w, at::kFloat);
        const at::Tensor truth = at::matmul(x.to(at::kDouble), at::cat(w).to(at::kDouble).t());
        ASSERT_EQ(y.sizes(), truth.sizes());
        EXPECT_LT((y.to(at::kDouble) - truth).abs().max().item<double>(),
                  1e-5 * truth.abs().max().item<double>())
            << rows << " x " << in;
        // A row has the same bits alone and among others.
        EXPECT_TRUE(at::equal(few_rows_product(x.narrow(1, rows - 1, 1), w, at::kFloat),
                              y.narrow(1, rows - 1, 1)));
      }
    }
  }
}

TEST(FewRowsProduct, LeavesOtherShapesAndTypesToMatrixProducts) {
  const at::Tensor w = at::ones({8, 8});
  EXPECT_FALSE(is_few_rows(at::ones({5, 8}), {w}));
  EXPECT_FALSE(is_few_rows(at::ones({1, 8}), {at::ones({8, 9}).narrow(1, 0, 8)}));
  EXPECT_TRUE(is_few_rows(at::ones({1, 8}), {w, w.to(at::kBFloat16)}));
  EXPECT_FALSE(is_few_rows(at::ones({1, 8}), {w, w.to(at::kHalf)}));
  EXPECT_FALSE(is_few_rows(at::ones({1, 8}, at::kDouble), {w.to(at::kDouble)}));
  EXPECT_FALSE(is_few_rows(at::ones({0, 8}), {w}));
}

}  // namespace
}  // namespace fovea::matmul_test
