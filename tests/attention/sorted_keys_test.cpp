// Keys sorted by class: decoding of long texts equals the scan (spec 11.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/sorted_keys.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "fovea/attention/cache/sorted_copy.h"
#include "fovea/attention/decode/cached_attention.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/gradcheck.h"

namespace fovea::sorted_keys_test {
namespace {

using namespace fovea::testing;

AttentionSpec hard_spec(int64_t top_k, int64_t window = 16) {
  AttentionSpec spec = small_spec(4, 2, 16);
  spec.focus = {
      .gate = FocusSpec::Gate::hard, .groups = 8, .top_k = top_k, .window = window, .sinks = 3};
  return spec;
}

void append(SortedKeys& keys, const AttentionInputs& in, int64_t begin, int64_t n) {
  const AttentionInputs some = in.tokens(begin, n);
  for (int64_t b = 0; b < in.k.size(0); ++b) {
    const auto row = [b](const at::Tensor& x) { return x.narrow(0, b, 1); };
    keys.append(b, row(some.k), row(some.v), row(some.tensors.members_bs));
  }
}

void truncate(SortedKeys& keys, int64_t batch, int64_t length) {
  for (int64_t b = 0; b < batch; ++b) keys.truncate(b, length);
}

// The query of token `at`, against the scan over the tokens before it.
void expect_as_scan(const AttentionSpec& spec, const SortedKeys& keys, const AttentionInputs& in,
                    int64_t at, double bound = 1e-5) {
  const at::NoGradGuard no_gradient;
  const AttentionInputs all = in.tokens(0, at + 1);
  const at::Tensor q = in.q.narrow(2, at, 1);
  const AttentionResult scan = attention(spec, q, all.k, all.v, all.tensors);
  ASSERT_EQ(scan.path.plan, at < spec.focus.window ? PlanWord::causal : PlanWord::scan);
  const auto got = attend_sorted(keys, spec, q, {}, {});
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->path.plan, PlanWord::sorted);
  EXPECT_LT(relative_error(got->out_bhte, scan.out_bhte), bound) << at;
  EXPECT_LT(relative_error(got->lse_bht, scan.lse_bht), bound) << at;
}

TEST(SortedKeys, EqualTheScanWhileTheyGrowShrinkAndFork) {
  for (const int64_t top_k : {1, 2, 4}) {
    const AttentionSpec spec = hard_spec(top_k);
    const AttentionInputs in = random_inputs(spec, 2, 700).to(at::kFloat);
    SortedKeys keys(128, 2);
    append(keys, in, 0, 400);
    for (int64_t n = 400; n < 460; ++n) {
      append(keys, in, n, 1);
      expect_as_scan(spec, keys, in, n);
    }
    SortedKeys fork = keys.clone();
    truncate(keys, 2, 130);
    EXPECT_EQ(keys.length(1), 130);
    append(keys, in, 130, 1);
    expect_as_scan(spec, keys, in, 130);
    append(keys, in, 131, 300);
    expect_as_scan(spec, keys, in, 430);
    append(fork, in, 460, 240);  // knows nothing of that
    expect_as_scan(spec, fork, in, 699);
  }
}

// The ring holds 64 tokens: more than the window, all but its first ones, and few after truncation.
TEST(SortedKeys, HoldForWindowsShorterAndLongerThanTheirRing) {
  for (const int64_t window : {1, 16, 64, 65, 150}) {
    const AttentionSpec spec = hard_spec(2, window);
    const AttentionInputs in = random_inputs(spec, 2, 420).to(at::kFloat);
    SortedKeys keys(64, 2);
    append(keys, in, 0, 30);
    expect_as_scan(spec, keys, in, 29);
    append(keys, in, 30, 270);
    expect_as_scan(spec, keys, in, 299);
    for (const int64_t length : {290, 245, 100}) {  // kept, in part, and nothing of the ring
      truncate(keys, 2, length);
      expect_as_scan(spec, keys, in, length - 1);
      for (int64_t n = length; n < length + 70; ++n) {
        append(keys, in, n, 1);
        expect_as_scan(spec, keys, in, n);
      }
    }
  }
}

TEST(SortedKeys, GiveForgottenPagesToOtherGroups) {
  const AttentionSpec spec = hard_spec(1);
  const AttentionInputs in = random_inputs(spec, 1, 600).to(at::kFloat);
  SortedKeys keys(64);
  int64_t bytes = 0;
  for (int64_t group = 0; group < 8; ++group) {  // all tokens in one group, then in another
    keys.truncate(0, 0);
    keys.append(0, in.k, in.v, at::full({1, 600}, int64_t{1} << group, at::kLong));
    if (group == 0) bytes = keys.bytes();
    EXPECT_EQ(keys.bytes(), bytes) << group;
  }
}

TEST(SortedKeys, HoldForBfloat16AndTokensOfNoGroup) {
  const AttentionSpec spec = hard_spec(1);
  AttentionInputs in = random_inputs(spec, 1, 300).to(at::kBFloat16);
  in.tensors.members_bs.slice(1, 0, {}, 3).zero_();
  SortedKeys keys;
  append(keys, in, 0, 299);
  append(keys, in, 299, 1);
  expect_as_scan(spec, keys, in, 299, 1e-2);
  keys.truncate(0, 298);
  expect_as_scan(spec, keys, in, 297, 1e-2);
}

// A long text is scanned first, then sorted; chunks, forgetting and forking in between.
TEST(SortedKeys, TakeOverInTheCacheOfALongText) {
  const AttentionSpec spec = hard_spec(1);
  const int64_t prompt = SortedKeys::kLeastKeys + 100;
  const AttentionInputs in = random_inputs(spec, 1, prompt + 100).to(at::kFloat);
  AttentionCache cache(cache_streams(spec, at::kFloat), 1, prompt + 100);
  const at::Tensor queries = in.q.narrow(2, prompt, 100);
  const at::Tensor whole = reference_attention(spec, queries, in.k, in.v, in.tensors).out_bhte;
  SortedCopy sorted;
  const auto step = [&](AttentionCache& at, SortedCopy& copy, int64_t begin, int64_t n) {
    const AttentionInputs some = in.tokens(begin, n);
    const AttentionResult result =
        cached_attention(spec, at, some.q, some.k, some.v, some.tensors, Path::automatic, &copy);
    if (begin >= prompt) {
      EXPECT_LT(relative_error(result.out_bhte, whole.narrow(2, begin - prompt, n)), 1e-5) << begin;
    }
    return result.path.plan_text();
  };
  step(cache, sorted, 0, prompt);
  EXPECT_EQ(step(cache, sorted, prompt, 1), "grouped scan");
  for (int64_t i = 1; i < 60; ++i) step(cache, sorted, prompt + i, 1);
  EXPECT_EQ(step(cache, sorted, prompt + 60, 1), "grouped sorted");
  EXPECT_GT(sorted.bytes(), 0);
  AttentionCache fork = cache.fork();
  SortedCopy sorted_fork = sorted.fork();
  step(fork, sorted_fork, prompt + 61, 20);
  EXPECT_EQ(step(fork, sorted_fork, prompt + 81, 1), "grouped sorted");
  cache.truncate(prompt + 30);
  sorted.truncate(std::vector<int64_t>{prompt + 30});
  EXPECT_EQ(step(cache, sorted, prompt + 30, 1), "grouped sorted");
  AttentionCache loaded(cache_streams(spec, at::kFloat), 1, prompt + 100);
  loaded.load(cache.save());
  SortedCopy sorted_loaded;
  EXPECT_EQ(step(loaded, sorted_loaded, prompt + 31, 1), "grouped scan");
}

// Each sequence of a batch has a length of its own.
TEST(SortedKeys, HoldForSequencesOfUnequalLengths) {
  const AttentionSpec spec = hard_spec(1);
  const AttentionInputs in = random_inputs(spec, 2, 700).to(at::kFloat);
  const auto row = [&](int64_t b, int64_t begin, int64_t n) {
    const AttentionInputs some = in.tokens(begin, n);
    const auto of = [b](const at::Tensor& x) { return x.narrow(0, b, 1); };
    return std::tuple{of(some.k), of(some.v), of(some.tensors.members_bs)};
  };
  SortedKeys both(64, 2), alone(64, 1);
  const auto add = [&](SortedKeys& to, int64_t at, int64_t b, int64_t begin, int64_t n) {
    const auto [k, v, members] = row(b, begin, n);
    to.append(at, k, v, members);
  };
  add(both, 0, 0, 0, 700);
  add(both, 1, 1, 0, 300);
  add(alone, 0, 1, 0, 300);
  both.truncate(1, 250);
  alone.truncate(0, 250);
  add(both, 1, 1, 250, 40);
  add(alone, 0, 1, 250, 40);
  EXPECT_EQ(both.length(0), 700);
  EXPECT_EQ(both.length(1), 290);
  EXPECT_EQ(both.next_row(1), 290 % 64);
  EXPECT_EQ(both.slots_seen(spec.focus, 1), alone.slots_seen(spec.focus, 0));
}

// A page for each of thousands of sets would hold a row or two, so such texts stay with the scan.
TEST(SortedKeys, LeaveTextsOfManySetsOfGroupsToTheScan) {
  AttentionSpec spec = hard_spec(4);
  spec.focus.groups = 64;
  const int64_t prompt = SortedKeys::kLeastKeys + 100, whole = prompt + 250;
  const AttentionInputs in = random_inputs(spec, 1, whole).to(at::kFloat);
  EXPECT_FALSE(SortedKeys::pays(in.tensors.members_bs));
  AttentionCache many(cache_streams(spec, at::kFloat), 1, whole), few = many.fork();
  SortedCopy of_many, of_few;
  const auto step = [&](AttentionCache& at, int64_t begin, int64_t n, const at::Tensor& sets) {
    SortedCopy& copy = &at == &many ? of_many : of_few;
    AttentionInputs some = in.tokens(begin, n);
    if (sets.defined()) some.tensors.members_bs = sets.narrow(1, begin, n);
    return cached_attention(spec, at, some.q, some.k, some.v, some.tensors, Path::automatic, &copy)
        .path.plan_text();
  };
  const at::Tensor eight =
      at::ones({1, whole}, at::kLong).bitwise_left_shift(at::arange(whole) % 8);
  EXPECT_TRUE(SortedKeys::pays(eight));
  step(many, 0, prompt, {});
  step(few, 0, prompt, eight);
  for (int64_t n = prompt; n < prompt + 50; ++n) {
    EXPECT_EQ(step(many, n, 1, {}), "grouped scan");
    EXPECT_EQ(step(few, n, 1, eight), n < prompt + 32 ? "grouped scan" : "grouped sorted");
  }
  EXPECT_EQ(of_many.bytes(), 0);
  std::string plan;
  for (int64_t n = prompt + 50; n < whole; ++n) plan = step(few, n, 1, {});  // a new set each
  EXPECT_EQ(plan, "grouped scan");
  EXPECT_EQ(of_few.bytes(), 0);
}

}  // namespace
}  // namespace fovea::sorted_keys_test
