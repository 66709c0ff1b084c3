// Hard Focus in two passes, emulated, against the formulas in float64 (spec 11.4, U-9).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "tests/support/cuda/emulated_machine.h"
#include "tests/support/pointwise_truth.h"

namespace fovea::cuda_focus_test {
namespace {

using namespace fovea::testing;
using namespace fovea::kernels;

constexpr int64_t kWidth = 64;

// `together`: groups of a token.
PointwiseSettings settings(int64_t batch, int64_t tokens, int together) {
  PointwiseSettings s{.sizes = {batch, 2, 1, tokens, tokens, kWidth, kWidth}};
  s.scale = 0.125;
  s.groups = 8, s.focus_window = 40, s.focus_sinks = 4;
  Rng random(5);
  for (int64_t n = 0; n < tokens; ++n) {
    uint64_t set = 0;
    while (std::popcount(set) < together) set |= uint64_t{1} << int(random.uniform() * 8.0);
    s.members.push_back(set);
  }
  return s;
}

// Forward and backward by the backend; the rows of the batch have the same memberships.
class FocusCall {
 public:
  FocusCall(const PointwiseSettings& s, PointwiseProblem<BFloat16>& problem, int64_t most_groups)
      : s_(s.sizes), problem_(problem) {
    groups_.rule = {.groups = s.groups, .window = s.focus_window, .sinks = s.focus_sinks};
    groups_.most_groups = most_groups;
    for (int64_t b = 0; b < s_.batch; ++b)
      sets_.insert(sets_.end(), s.members.begin(), s.members.end());
    groups_.members = sets_.data();
    rule_.scale = static_cast<float>(s.scale);
    out_.resize(static_cast<size_t>(s_.batch * s_.heads * s_.queries * kWidth));
    rest_.resize(out_.size());
    dq_.resize(out_.size());
    dk_.resize(static_cast<size_t>(s_.batch * s_.kv_heads * s_.keys * kWidth));
    dv_.resize(dk_.size());
    lse_.resize(static_cast<size_t>(s_.batch * s_.heads * s_.queries));
  }

  FocusForward<BFloat16> forward() {
    return {.sizes = s_,
            .rule = rule_,
            .groups = groups_,
            .q = rows<const BFloat16>(problem_.queries(), s_.heads),
            .k = rows<const BFloat16>(problem_.keys(), s_.kv_heads),
            .v = rows<const BFloat16>(problem_.values(), s_.kv_heads),
            .out = rows<BFloat16>(out_, s_.heads),
            .out_rest = rows<BFloat16>(rest_, s_.heads),
            .lse = lse_.data()};
  }
  FocusBackward<BFloat16> backward() {
    const FocusForward<BFloat16> f = forward();
    return {.sizes = s_,
            .rule = rule_,
            .groups = groups_,
            .q = f.q,
            .k = f.k,
            .v = f.v,
            .out = rows<const BFloat16>(out_, s_.heads),
            .out_rest = rows<const BFloat16>(rest_, s_.heads),
            .dout = rows<const BFloat16>(problem_.output_gradients(), s_.heads),
            .lse = lse_.data(),
            .dlse = problem_.lse_gradients().data(),
            .dq = rows<BFloat16>(dq_, s_.heads),
            .dk = rows<BFloat16>(dk_, s_.kv_heads),
            .dv = rows<BFloat16>(dv_, s_.kv_heads)};
  }
  PointwiseNumbers run() {
    emulated_backend().run(forward());
    emulated_backend().run(backward());
    return {.out = doubles(out_),
            .lse = {lse_.begin(), lse_.end()},
            .dq = doubles(dq_),
            .dk = doubles(dk_),
            .dv = doubles(dv_)};
  }
  ScoreParameters& rule() { return rule_; }

 private:
  using Numbers = std::vector<BFloat16>;

  // [batch][token][head][width], as PointwiseProblem has them.
  template <class T>
  HeadRows<T> rows(Numbers& x, int64_t heads) const {
    return {x.data(), s_.keys * heads * kWidth, kWidth, heads * kWidth};
  }
  static std::vector<double> doubles(const Numbers& x) {
    std::vector<double> all;
    for (const BFloat16 n : x) all.push_back(static_cast<double>(to_float(n)));
    return all;
  }

  AttentionSizes s_;
  PointwiseProblem<BFloat16>& problem_;
  ScoreParameters rule_;
  FocusGroups groups_;
  std::vector<uint64_t> sets_;
  Numbers out_, rest_, dq_, dk_, dv_;
  std::vector<float> lse_;
};

class CudaFocus : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(scratch_in_use(), before_) << "memory of the device leaks"; }

  // By both generations of kernels.
  static void expect_truth(const PointwiseSettings& s, int64_t most_groups) {
    PointwiseProblem<BFloat16> problem(s);
    const PointwiseNumbers truth = problem.by_formula();
    for (const cuda::Machine& machine : {kHopper, kAmpere}) {
      const On on(machine);
      const int major = machine.major;
      const PointwiseNumbers got = FocusCall(s, problem, most_groups).run();
      EXPECT_LT(numbers_error(got.out, truth.out), kTolerance<BFloat16>.forward) << major;
      EXPECT_LT(numbers_error(got.lse, truth.lse), kTolerance<BFloat16>.forward) << major;
      EXPECT_LT(numbers_error(got.dq, truth.dq), kTolerance<BFloat16>.backward) << major;
      EXPECT_LT(numbers_error(got.dk, truth.dk), kTolerance<BFloat16>.backward) << major;
      EXPECT_LT(numbers_error(got.dv, truth.dv), kTolerance<BFloat16>.backward) << major;
    }
  }

 private:
  const int64_t before_ = scratch_in_use();
};

TEST_F(CudaFocus, OneGroupATokenInTwoPasses) { expect_truth(settings(1, 270, 1), 1); }

TEST_F(CudaFocus, TwoGroupsATokenCountEachPairOnce) { expect_truth(settings(1, 180, 2), 2); }

TEST_F(CudaFocus, EveryRowOfABatchHasAPlanOfItsOwn) { expect_truth(settings(2, 100, 1), 1); }

TEST_F(CudaFocus, MoreGroupsOfATokenThanPromisedStayInsideTheirMemory) {
  const PointwiseSettings s = settings(1, 150, 3);
  PointwiseProblem<BFloat16> problem(s);
  for (const cuda::Machine& machine : {kHopper, kAmpere}) {
    const On on(machine);
    FocusCall(s, problem, 1).run();  // of other pairs
  }
  EXPECT_EQ(bytes_written_beyond_scratch(), 0);
}

TEST_F(CudaFocus, SettingsWithoutAKernelAreRefusedByName) {
  const PointwiseSettings s = settings(1, 16, 1);
  PointwiseProblem<BFloat16> problem(s);
  FocusCall call(s, problem, 1);
  EXPECT_FALSE(emulated_backend().why_not(call.forward()));
  call.rule().soft_cap = 2.0f;
  EXPECT_THAT(emulated_backend().why_not(call.forward()).value_or(""),
              ::testing::HasSubstr("plain scores"));
  EXPECT_THROW(emulated_backend().run(call.forward()), UnsupportedError);
  call.rule().soft_cap = 0.0f;
  FocusForward<BFloat16> windowed = call.forward();
  windowed.groups.rule.mask.window = 8;
  EXPECT_THAT(emulated_backend().why_not(windowed).value_or(""),
              ::testing::HasSubstr("causal mask alone"));
}

}  // namespace
}  // namespace fovea::cuda_focus_test
