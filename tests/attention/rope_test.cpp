// Rotary positions (spec 6.1, 13.14, seam 8).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/positions/rope.h"

#include <gtest/gtest.h>

#include <complex>

#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::rope_test {
namespace {

using namespace fovea::testing;

RopeTable double_table(const RopeSpec& spec, int64_t d, int64_t n = 64) {
  return make_rope_table(spec, d, n, at::kCPU, at::kDouble);
}

// A pair is a complex number that turns by p theta^(-2t/d_r).
TEST(Rope, EqualsAComplexRotationForFullAndPartialWidths) {
  for (const int64_t width : {8, 4}) {
    const RopeSpec spec{.theta = 500.0, .rotary_dim = width};
    const at::Tensor x = random_normal({2, 3, 5, 8}, 1),
                     positions = at::tensor(std::vector<int64_t>{0, 1, 7, 30, 2});
    const at::Tensor y = apply_rope(x, double_table(spec, 8), positions);
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 3; ++h)
        for (int64_t i = 0; i < 5; ++i) {
          const auto at = [&](const at::Tensor& z, int64_t c) {
            return z[b][h][i][c].item<double>();
          };
          for (int64_t t = 0; t < width / 2; ++t) {
            const double angle =
                positions[i].item<double>() *
                std::pow(500.0, -2.0 * static_cast<double>(t) / static_cast<double>(width));
            const std::complex<double> turned =
                std::complex(at(x, t), at(x, t + width / 2)) * std::polar(1.0, angle);
            EXPECT_NEAR(at(y, t), turned.real(), 1e-14);
            EXPECT_NEAR(at(y, t + width / 2), turned.imag(), 1e-14);
          }
          for (int64_t c = width; c < 8; ++c) EXPECT_EQ(at(y, c), at(x, c));
        }
  }
}

// 13.14.
TEST(Rope, LogitsDependOnlyOnTheDistance) {
  const RopeTable table = double_table({}, 16, 200);
  const at::Tensor q = random_normal({1, 1, 1, 16}, 1), k = random_normal({1, 1, 1, 16}, 2);
  const auto logit = [&](int64_t i, int64_t j) {
    const auto place = [](int64_t p) { return at::tensor(std::vector<int64_t>{p}); };
    return (apply_rope(q, table, place(i)) * apply_rope(k, table, place(j))).sum().item<double>();
  };
  EXPECT_NEAR(logit(5, 2), logit(150, 147), 1e-12);
  EXPECT_NEAR(logit(9, 0), logit(109, 100), 1e-12);
  EXPECT_GT(std::abs(logit(5, 2) - logit(5, 4)), 1e-3);
}

// 13.14, spec 6.1: converting W_q and W_k between layouts keeps the logits of the other layout's
// rotation.
TEST(Rope, LayoutConversionKeepsTheLogits) {
  for (const int64_t width : {8, 4}) {
    const RopeSpec spec{.theta = 100.0, .rotary_dim = width};
    const at::Tensor x = random_normal({1, 6, 10}, 1), wq = random_normal({16, 10}, 2),
                     wk = random_normal({16, 10}, 3);
    const RopeTable table = double_table(spec, 8);
    const at::Tensor positions = at::arange(6, at::kLong);
    const auto heads = [&](const at::Tensor& w) {
      return at::matmul(x, w.t()).unflatten(2, {2, 8}).transpose(1, 2);
    };
    const auto interleaved = [&](const at::Tensor& q) {  // pairs (2t, 2t + 1), by the definition
      at::Tensor y = q.clone();
      for (int64_t t = 0; t < width / 2; ++t) {
        const at::Tensor a = q.select(3, 2 * t), b = q.select(3, 2 * t + 1),
                         c = table.cos_pf.select(1, t).narrow(0, 0, 6),
                         s = table.sin_pf.select(1, t).narrow(0, 0, 6);
        y.select(3, 2 * t).copy_(a * c - b * s);
        y.select(3, 2 * t + 1).copy_(a * s + b * c);
      }
      return y;
    };
    const auto half = [&](const at::Tensor& w) {
      return convert_rope_layout(w, 8, width, RopeLayout::interleaved, RopeLayout::half_split);
    };
    const at::Tensor theirs =
        at::matmul(interleaved(heads(wq)), interleaved(heads(wk)).transpose(2, 3));
    const at::Tensor ours =
        at::matmul(apply_rope(heads(half(wq)), table, positions),
                   apply_rope(heads(half(wk)), table, positions).transpose(2, 3));
    EXPECT_LT(relative_error(ours, theirs), 1e-13);
    EXPECT_TRUE(
        convert_rope_layout(half(wq), 8, width, RopeLayout::half_split, RopeLayout::interleaved)
            .equal(wq));
    EXPECT_EQ(half(wq.select(1, 0)).sizes(), at::IntArrayRef({16}));
  }
}

TEST(Rope, GradientsEqualCentralDifferences) {
  const at::Tensor x = random_normal({2, 2, 3, 6}, 1).set_requires_grad(true);
  const RopeTable table = double_table({.theta = 10.0, .rotary_dim = 4}, 6);
  const at::Tensor positions = at::tensor(std::vector<int64_t>{3, 1, 2, 0, 5, 9}).reshape({2, 3});
  expect_gradients(
      [&](const auto&) {
        return (apply_rope(x, table, positions) * random_normal({2, 2, 3, 6}, 4)).sum();
      },
      {x}, "rope");
}

TEST(Rope, AnyStridesAndDtypesGiveTheSameNumbers) {
  const at::Tensor x = random_normal({2, 3, 5, 8}, 1);
  const at::Tensor positions = at::arange(5, at::kLong);
  const at::Tensor truth = apply_rope(x, double_table({}, 8), positions);
  const at::Tensor by_token = x.transpose(1, 2).contiguous().transpose(1, 2);
  const at::Tensor turned = apply_rope(by_token, double_table({}, 8), positions);
  EXPECT_TRUE(turned.equal(truth));
  EXPECT_EQ(
      turned.strides(),
      by_token.strides());  // the order of a projection is kept, so merging heads needs no copy
  EXPECT_TRUE(
      apply_rope(at::stack({x, x}, -1).select(-1, 1), double_table({}, 8), positions).equal(truth));
  const RopeTable table = make_rope_table({}, 8, 5);
  EXPECT_LT(relative_error(apply_rope(x.to(at::kFloat), table, positions), truth), 1e-6);
  EXPECT_LT(relative_error(apply_rope(x.to(at::kBFloat16), table, positions), truth), 1e-2);
  EXPECT_EQ(apply_rope(x.to(at::kBFloat16), table, positions).scalar_type(), at::kBFloat16);
}

TEST(Rope, TableIsExactAtLargePositions) {
  const RopeTable table = make_rope_table({.theta = 500000.0}, 64, 131072);
  const double angle = 131071.0 * std::pow(500000.0, -2.0 * 3.0 / 64.0);
  EXPECT_NEAR(table.cos_pf[131071][3].item<double>(), std::cos(angle), 1e-7);
  EXPECT_NEAR(table.sin_pf[131071][3].item<double>(), std::sin(angle), 1e-7);
}

// 13.22: refused by name.
TEST(Rope, RefusesOddWidthsAndPlacesOutsideTheTable) {
  EXPECT_ERROR(ConfigError, RopeSpec{.rotary_dim = 5}.check(8), "even", "5");
  EXPECT_ERROR(ConfigError, RopeSpec{}.check(7), "even", "7");
  EXPECT_ERROR(ConfigError, RopeSpec{.rotary_dim = 10}.check(8), "10", "8");
  EXPECT_ERROR(ConfigError, RopeSpec{.theta = 0.0}.check(8), "theta");
  const RopeTable table = make_rope_table({}, 8, 4);
  EXPECT_ERROR(ShapeError,
               apply_rope(at::zeros({1, 1, 1, 8}), table, at::tensor(std::vector<int64_t>{4})),
               "4 rows");
  EXPECT_ERROR(ShapeError, apply_rope(at::zeros({1, 1, 2, 8}), table, at::arange(3, at::kLong)),
               "positions");
}

}  // namespace
}  // namespace fovea::rope_test
