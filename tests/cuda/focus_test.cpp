// Hard Focus in two passes, emulated: the plan, the pass over groups, the pass over the rest, and
// their gradients, against the formulas in float64.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>

#include "fovea/kernels/cuda/attention/units.h"
#include "tests/support/pointwise_truth.h"

namespace fovea::cuda_focus_test {
namespace {

using namespace fovea::testing;
using namespace fovea::kernels::cuda;

constexpr int kWidth = 64;
constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();

const Unit& unit(Generation generation, MaskForm mask) {
  for (const Unit& one : units())
    if (one.generation == generation && one.head_dim == kWidth && one.mask == mask) return one;
  throw std::logic_error("no such unit");
}

// The buffers of one problem: a batch row, its heads share the sets.
class TwoPasses {
 public:
  TwoPasses(const PointwiseSettings& s, PointwiseProblem<BFloat16>& problem)
      : tokens_(s.sizes.keys),
        heads_(s.sizes.heads),
        kv_heads_(s.sizes.kv_heads),
        sets_(s.members) {
    p_.batch = 1;
    p_.heads = static_cast<int32_t>(heads_);
    p_.kv_heads = static_cast<int32_t>(kv_heads_);
    p_.queries = p_.keys = static_cast<int32_t>(tokens_);
    p_.scale = static_cast<float>(s.scale);
    p_.window = static_cast<int32_t>(s.focus_window);
    p_.sinks = static_cast<int32_t>(s.focus_sinks);
    p_.groups = static_cast<int32_t>(s.groups);
    for (const uint64_t set : sets_) p_.slots = std::max(p_.slots, std::popcount(set));
    p_.q = rows(problem.queries(), heads_);
    p_.k = rows(problem.keys(), kv_heads_);
    p_.v = rows(problem.values(), kv_heads_);
    p_.d_o = rows(problem.output_gradients(), heads_);
    give(out_, p_.o, heads_), give(dq_, p_.dq, heads_);
    give(dk_, p_.dk, kv_heads_), give(dv_, p_.dv, kv_heads_);
    p_.lse = floats(heads_ * tokens_, kUnwritten);
    p_.membership = sets_.data();
    p_.membership_batch = tokens_;
    make_plan();
    p_.padded = (tokens_ / kEntryAlign + 1) * kEntryAlign;
    p_.lse2 = floats(heads_ * p_.padded, kUnwritten);
    p_.delta = floats(heads_ * p_.padded, kUnwritten);
    p_.dq_sum = floats(heads_ * p_.padded * kWidth, 0.0f);
    p_.dq_entries = floats(heads_ * p_.entries * kWidth, 0.0f);
    p_.dk_sum = floats(kv_heads_ * tokens_ * kWidth, 0.0f);
    p_.dv_sum = floats(kv_heads_ * tokens_ * kWidth, 0.0f);
  }

  PointwiseNumbers run(Generation generation) {
    const Unit& groups =
        unit(generation, p_.slots > 1 ? MaskForm::groups_several : MaskForm::groups);
    const Unit& rest = unit(generation, MaskForm::local_rest);
    int error = sort_groups(p_, 1, nullptr);
    for (const Launch launch :
         {groups.forward, rest.forward, rest.before, groups.backward, rest.backward})
      error |= launch(p_, nullptr);
    error |= rest.after(p_, false, true, nullptr);
    EXPECT_EQ(error, 0);
    return {.out = doubles(out_),
            .lse = {p_.lse, p_.lse + heads_ * tokens_},
            .dq = doubles(dq_),
            .dk = doubles(dk_),
            .dv = doubles(dv_)};
  }

 private:
  using Numbers = std::vector<BFloat16>;

  // [token][head][width], as PointwiseProblem has them.
  Rows rows(Numbers& x, int64_t heads) const {
    return {x.data(), tokens_ * heads * kWidth, kWidth, heads * kWidth};
  }
  void give(Numbers& x, Rows& to, int64_t heads) {
    x.resize(static_cast<size_t>(tokens_ * heads * kWidth));
    for (BFloat16& n : x) from_float(kUnwritten, n);
    to = rows(x, heads);
  }
  float* floats(int64_t count, float value) {
    floats_.emplace_back(static_cast<size_t>(count), value);
    return floats_.back().data();
  }
  template <class T>
  const T* plan_array(std::vector<std::vector<T>>& arrays, int64_t count) {
    arrays.emplace_back(static_cast<size_t>(count), static_cast<T>(-1));
    return arrays.back().data();
  }
  void make_plan() {
    const int64_t most = p_.slots * tokens_;
    p_.entries = (most + kEntryAlign - 1) / kEntryAlign * kEntryAlign + p_.groups * kEntryAlign;
    p_.plan_batch = 1;
    p_.entry_token = plan_array(ints_, p_.entries);
    p_.entry_row = plan_array(ints_, p_.entries);
    p_.entry_set = plan_array(longs_, p_.entries);
    p_.entry_hides = plan_array(longs_, p_.entries);
    p_.row_entry = plan_array(ints_, most);
    p_.segment_start = plan_array(ints_, p_.entries / kEntryAlign);
    p_.segment_end = plan_array(ints_, p_.entries / kEntryAlign);
    partial_.resize(static_cast<size_t>(heads_ * most * kWidth));
    p_.partial = {partial_.data(), heads_ * most * kWidth, most * kWidth, kWidth};
    p_.partial_lse = floats(heads_ * most, kUnwritten);
  }
  static std::vector<double> doubles(const Numbers& x) {
    std::vector<double> all;
    for (const BFloat16 n : x) all.push_back(static_cast<double>(to_float(n)));
    return all;
  }

  int64_t tokens_, heads_, kv_heads_;
  std::vector<uint64_t> sets_;
  Problem p_{};
  Numbers out_, dq_, dk_, dv_, partial_;
  std::vector<std::vector<float>> floats_;
  std::vector<std::vector<int32_t>> ints_;
  std::vector<std::vector<uint64_t>> longs_;
};

// `together`: groups of a token.
void expect_truth_of_focus(int64_t tokens, int together) {
  PointwiseSettings s{.sizes = {1, 2, 1, tokens, tokens, kWidth, kWidth}};
  s.scale = 0.125, s.lse_gradient = false;
  s.groups = 8, s.focus_window = 40, s.focus_sinks = 4;
  Rng random(5);
  for (int64_t n = 0; n < tokens; ++n) {
    uint64_t set = 0;
    while (std::popcount(set) < together) set |= uint64_t{1} << int(random.uniform() * 8.0);
    s.members.push_back(set);
  }
  PointwiseProblem<BFloat16> problem(s);
  const PointwiseNumbers truth = problem.by_formula();
  for (const Generation generation : {Generation::wgmma, Generation::mma}) {
    const PointwiseNumbers got = TwoPasses(s, problem).run(generation);
    const std::string what = generation == Generation::wgmma ? "wgmma" : "mma";
    EXPECT_LT(numbers_error(got.out, truth.out), kTolerance<BFloat16>.forward) << what;
    EXPECT_LT(numbers_error(got.lse, truth.lse), kTolerance<BFloat16>.forward) << what;
    EXPECT_LT(numbers_error(got.dq, truth.dq), kTolerance<BFloat16>.backward) << what;
    EXPECT_LT(numbers_error(got.dk, truth.dk), kTolerance<BFloat16>.backward) << what;
    EXPECT_LT(numbers_error(got.dv, truth.dv), kTolerance<BFloat16>.backward) << what;
  }
}

TEST(CudaFocus, OneGroupATokenInTwoPasses) { expect_truth_of_focus(270, 1); }

TEST(CudaFocus, TwoGroupsATokenCountEachPairOnce) { expect_truth_of_focus(180, 2); }

}  // namespace
}  // namespace fovea::cuda_focus_test
