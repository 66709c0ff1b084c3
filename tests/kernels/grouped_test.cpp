// The kernels of grouped attention against scalar loops in float64 over the dense mask (spec 11.5).
// ForcedIsa (attention_test.cpp) runs these tests on every instruction set, too.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/grouped/grouped.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <functional>

#include "tests/support/expect_error.h"
#include "tests/support/member_patterns.h"
#include "tests/support/pointwise_problem.h"

namespace fovea::grouped_test {
namespace {

using namespace fovea::testing;

constexpr GroupedKind kKinds[] = {GroupedKind::block_sparse, GroupedKind::classes,
                                  GroupedKind::groups};

PointwiseSettings grouped_settings(int64_t tokens, std::vector<uint64_t> members) {
  PointwiseSettings s{.sizes = {1, 2, 1, tokens, tokens, 16, 24}};
  s.members = std::move(members);
  s.focus_window = 24;
  s.focus_sinks = 3;
  return s;
}

template <class T>
void expect_close(const PointwiseNumbers& got, const PointwiseNumbers& truth,
                  const std::string& what) {
  constexpr bool exact = std::is_same_v<T, float>;
  const double forward = exact ? 1e-5 : 1e-2, backward = exact ? 1e-4 : 3e-2;
  EXPECT_LT(numbers_error(got.out, truth.out), forward) << what << " out";
  EXPECT_LT(numbers_error(got.lse, truth.lse), forward) << what << " lse";
  EXPECT_LT(numbers_error(got.dq, truth.dq), backward) << what << " dq";
  EXPECT_LT(numbers_error(got.dk, truth.dk), backward) << what << " dk";
  EXPECT_LT(numbers_error(got.dv, truth.dv), backward) << what << " dv";
  EXPECT_LT(numbers_error(got.dtau, truth.dtau), backward) << what << " dtau";
  EXPECT_LT(numbers_error(got.dsink, truth.dsink), backward) << what << " dsink";
}

template <class T>
void expect_truth(const PointwiseSettings& settings, const std::string& what) {
  PointwiseProblem<T> problem(settings);
  const PointwiseNumbers truth = problem.by_formula();
  for (const GroupedKind kind : kKinds) {
    const std::string name(enum_names(kind)[static_cast<size_t>(kind)]);
    try {
      expect_close<T>(problem.by_plan(kind), truth, what + ", " + name);
    } catch (const ConfigError&) {
      EXPECT_NE(kind, GroupedKind::block_sparse) << what;
    }
  }
}

void expect_truths(const PointwiseSettings& settings, const std::string& what) {
  expect_truth<float>(settings, what);
  expect_truth<BFloat16>(settings, what);
}

TEST(AttentionKernels, GroupedEqualsTheMaskForEveryPattern) {
  for (const auto& [name, members] : member_patterns(300, 8))
    expect_truths(grouped_settings(300, members), name);
}

TEST(AttentionKernels, GroupedEqualsTheMaskForEverySetting) {
  const auto check = [](const std::string& name,
                        const std::function<void(PointwiseSettings&)>& change) {
    PointwiseSettings s = grouped_settings(200, random_sets(200, 8, 2, 9));
    change(s);
    expect_truths(s, name);
  };
  check("no sinks", [](auto& s) { s.focus_sinks = 0; });
  check("window 1", [](auto& s) { s.focus_window = 1, s.focus_sinks = 0; });
  check("window over everything", [](auto& s) { s.focus_window = 300; });
  check("tau", [](auto& s) { s.tau = true; });
  check("soft-cap", [](auto& s) { s.soft_cap = 1.5; });
  check("sink logit", [](auto& s) { s.sink = true; });
  check("mask window", [](auto& s) { s.mask.window = 70, s.mask.sinks = 2; });
  check("strided", [](auto& s) {
    s.mask = {.window = 5, .sparsity = MaskRule::Sparsity::strided, .stride = 7};
  });
  check("documents", [](auto& s) { s.documents = 3; });
  check("one-token documents", [](auto& s) { s.documents = 200; });
  check("chunk", [](auto& s) { s.sizes.queries = 75; });
  check("grouped heads", [](auto& s) { s.sizes.heads = 6, s.sizes.kv_heads = 2; });
  check("one group", [](auto& s) {
    s.groups = 1;
    s.members.assign(200, 1);
  });
  check("64 groups", [](auto& s) {
    s.groups = 64;
    s.members = random_sets(200, 64, 3, 4);
  });
  check("everything", [](auto& s) {
    s.tau = s.sink = true;
    s.soft_cap = 2.0, s.mask.window = 90, s.documents = 2;
  });
}

TEST(AttentionKernels, GroupedEqualsTheMaskForOddLengthsAndWidths) {
  for (const int64_t tokens : {1, 3, 19, 97, 257, 700})
    expect_truths(grouped_settings(tokens, random_sets(tokens, 4, 1, 2)),
                  std::to_string(tokens) + " tokens");
  for (const int64_t width : {8, 40, 64, 128, 256}) {
    PointwiseSettings s = grouped_settings(130, random_sets(130, 4, 1, 2));
    s.sizes.head_dim = width, s.sizes.value_dim = 264 - width;
    s.scale = 1.0 / std::sqrt(static_cast<double>(width));
    expect_truths(s, "width " + std::to_string(width));
  }
}

// Small, so that every window is affordable.
PointwiseSettings one_head(int64_t tokens, int64_t window) {
  PointwiseSettings s = grouped_settings(tokens, random_sets(tokens, 3, 1, 7));
  s.sizes = {1, 1, 1, tokens, tokens, 8, 8};
  s.focus_window = window;
  s.focus_sinks = 0;
  return s;
}

// Every window puts the bounds of near and far pairs elsewhere in the tiles, of which some are then
// seen whole, some cut and some not at all.
TEST(AttentionKernels, GroupedEqualsTheMaskForEveryWindow) {
  for (int64_t window = 1; window <= 76; ++window)
    expect_truth<BFloat16>(one_head(150, window), "window " + std::to_string(window));
  for (const int64_t window : {15, 16, 17, 31, 32, 33, 63, 64, 65})
    expect_truth<float>(one_head(150, window), "window " + std::to_string(window));
}

// Of these queries few, one or none have a far key, and of these keys few, one or none a far query:
// no others stand in lists. Up to T = w there is no list at all.
TEST(AttentionKernels, GroupedEqualsTheMaskWhereFewTokensAreFar) {
  for (const int64_t window : {24, 64, 128}) {
    for (const int64_t more : {-1, 0, 1, 2, 9, 40}) {
      PointwiseSettings s = one_head(window + more, window);
      expect_truths(s, std::to_string(more) + " tokens more than the window");
      s.sizes.queries = std::min<int64_t>(5, s.sizes.keys);
      expect_truths(s, std::to_string(more) + " more, 5 queries");
      s.sizes.queries = s.sizes.keys;
      s.documents = 2;
      expect_truths(s, std::to_string(more) + " more, two documents");
      s.members.assign(s.members.size(), 1);
      s.members.front() = s.members.back() = 2;  // the first and the last token share a group alone
      s.documents = 1;
      expect_truths(s, std::to_string(more) + " more, two tokens in a group");
    }
  }
}

// Long enough for several partitions of the backward pass, whose near rows overlap.
TEST(AttentionKernels, GroupedEqualsTheMaskOverSeveralPartitions) {
  const auto check = [](const std::string& name, int64_t tokens,
                        const std::function<void(PointwiseSettings&)>& change) {
    PointwiseSettings s = grouped_settings(tokens, random_sets(tokens, 8, 1, 9));
    s.sizes.head_dim = s.sizes.value_dim = 8;
    s.tau = true;
    change(s);
    expect_truths(s, name);
  };
  check("all queries", 1400, [](auto&) {});
  check("a chunk", 1400, [](auto& s) { s.sizes.queries = 777; });
  check("documents", 1400, [](auto& s) { s.documents = 7; });
  check("a window over a partition", 1700, [](auto& s) { s.focus_window = 1100; });
}

// A dense plan takes the tiles of plain attention: the same bits.
TEST(AttentionKernels, GroupedDenseIsPlainAttention) {
  PointwiseSettings s = grouped_settings(300, std::vector<uint64_t>(300, 5));
  s.focus_sinks = 0;
  PointwiseProblem<float> grouped(s);
  s.members.clear();
  PointwiseProblem<float> plain(s);
  const PointwiseNumbers a = grouped.by_plan(GroupedKind::dense), b = plain.by_kernels();
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.lse, b.lse);
  EXPECT_LT(numbers_error(a.dq, b.dq), 1e-6);
  EXPECT_LT(numbers_error(a.dk, b.dk), 1e-6);
}

// What far passes leave must hold when the near keys are larger by far, and smaller.
TEST(AttentionKernels, GroupedSurvivesLogitsThatGrowAndFall) {
  for (const bool grow : {true, false}) {
    PointwiseSettings s = grouped_settings(400, random_sets(400, 4, 2, 3));
    s.groups = 4;
    PointwiseProblem<float> problem(s);
    const size_t row = 16;
    for (size_t n = 0; n < problem.keys().size(); ++n)
      problem.keys()[n] *= static_cast<float>(grow ? n / row : 400 - n / row);
    const PointwiseNumbers truth = problem.by_formula();
    for (const GroupedKind kind : kKinds) {
      const PointwiseNumbers got = problem.by_plan(kind);
      EXPECT_LT(numbers_error(got.out, truth.out), 1e-4) << grow;
      EXPECT_LT(numbers_error(got.lse, truth.lse), 1e-6) << grow;
    }
  }
}

// One thread packs far lists for itself, nine (of eight classes) have all packed before.
TEST(AttentionKernels, GroupedGivesTheSameBitsForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  for (int64_t n = 0; n < 2 * std::ssize(kKinds); ++n) {
    const GroupedKind kind = kKinds[n / 2];
    const int64_t tokens = n % 2 == 0 ? 1300 : 600;
    PointwiseSettings s = grouped_settings(tokens, random_sets(tokens, 8, 1 + n % 2, 3));
    s.sizes = {2, 4, 2, tokens, tokens, 16, 16};
    std::vector<PointwiseNumbers> runs;
    for (const int threads : {1, 2, 9}) {
      omp_set_num_threads(threads);
      runs.push_back(PointwiseProblem<float>(s).by_plan(kind));
    }
    for (const PointwiseNumbers& other : {runs[1], runs[2]}) {
      EXPECT_EQ(other.out, runs[0].out);
      EXPECT_EQ(other.dq, runs[0].dq);
      EXPECT_EQ(other.dk, runs[0].dk);
      EXPECT_EQ(other.dv, runs[0].dv);
    }
  }
  omp_set_num_threads(before);
}

// Changing tokens after i leaves the rows up to i alone, to the bit, though classes grow.
TEST(AttentionKernels, GroupedRowsDoNotNoticeLaterKeys) {
  for (const GroupedKind kind : kKinds) {
    PointwiseSettings s = grouped_settings(500, random_sets(500, 8, 1, 3));
    PointwiseProblem<float> one(s);
    for (size_t n = 300; n < 500; ++n) s.members[n] = 2;
    PointwiseProblem<float> other(s);
    for (size_t n = 300 * 16; n < other.keys().size(); ++n) other.keys()[n] *= 50.0f;
    const PointwiseNumbers a = one.by_plan(kind), b = other.by_plan(kind);
    const int64_t rows = 300 * 2 * 24;
    EXPECT_TRUE(std::equal(a.out.begin(), a.out.begin() + rows, b.out.begin()));
    EXPECT_NE(a.out, b.out);
  }
}

TEST(AttentionKernels, GroupedPlanMovedToOtherMemoryHasTheSameBits) {
  const PointwiseSettings s = grouped_settings(500, random_sets(500, 8, 1, 3));
  for (const GroupedKind kind :
       {GroupedKind::block_sparse, GroupedKind::classes, GroupedKind::groups}) {
    PointwiseProblem<float> problem(s);
    const GroupedPlan plan = problem.plan(kind);
    const std::vector<std::byte> memory(plan.memory.bytes().begin(), plan.memory.bytes().end());
    const PointwiseNumbers here = problem.by_plan(plan),
                           there = problem.by_plan(moved_to(memory.data(), plan));
    EXPECT_EQ(here.out, there.out);
    EXPECT_EQ(here.dk, there.dk);
  }
}

TEST(AttentionKernels, GroupedScanFindsTheKeysThatAQuerySees) {
  for (const int64_t keys : {1, 2, 9, 140, 5003}) {
    const std::vector<uint64_t> members = random_sets(keys, 64, 9, 3);
    std::vector<int64_t> positions;
    for (int64_t n = 0; n < keys; ++n) positions.push_back(n < 2 ? n : 3 * n);
    for (const MaskRule& mask : {MaskRule{}, MaskRule{.window = 90, .sinks = 1}}) {
      const GroupedRule rule{.mask = mask, .groups = 64, .window = 30, .sinks = 2};
      const auto expect = [&](const std::vector<int32_t>& got, const auto& position) {
        std::vector<int32_t> truth;
        const int64_t query = position(keys - 1);
        for (int64_t n = 0; n < keys; ++n) {
          const bool seen =
              query - position(n) < 30 || position(n) < 2 || (members[n] & members[keys - 1]) != 0;
          if (seen && allowed(mask, {.position = query}, {.position = position(n)}))
            truth.push_back(static_cast<int32_t>(n));
        }
        EXPECT_EQ(got, truth) << keys;
      };
      const auto seen = [&](std::span<const int64_t> at) {
        std::vector<int32_t> keys_seen;
        kernels::run(kernels::KeysOfLast{
            .rule = rule, .members = members, .positions = at, .seen = &keys_seen});
        return keys_seen;
      };
      expect(seen({}), [](int64_t n) { return n; });
      expect(seen(positions), [&](int64_t n) { return positions[n]; });
    }
  }
}

TEST(AttentionKernels, GroupedRefusesBiasesAndOtherSizes) {
  PointwiseSettings s = grouped_settings(40, random_sets(40, 8, 1, 3));
  s.alibi = true;
  EXPECT_ERROR(UnsupportedError, PointwiseProblem<float>(s).by_plan(GroupedKind::classes), "bias");
  s.alibi = false;
  s.dropout = 0.5;
  EXPECT_ERROR(UnsupportedError, PointwiseProblem<float>(s).by_plan(GroupedKind::classes),
               "dropout");
  s.dropout = 0.0;
  PointwiseProblem<float> problem(s);
  std::vector<GroupedPlan> plans{problem.plan(std::nullopt)};
  plans[0].keys = 41;
  EXPECT_ERROR(ShapeError, run(kernels::GroupedForward<float>{.sizes = s.sizes, .plans = plans}),
               "40", "41");
}

}  // namespace
}  // namespace fovea::grouped_test
