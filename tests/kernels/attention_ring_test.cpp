// Windows and short documents: operands go through rings that threads pack as they walk.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_ring.h"

#include <gtest/gtest.h>
#include <omp.h>

#include "tests/support/pointwise_truth.h"

namespace fovea::attention_ring_test {
namespace {

using namespace fovea::testing;
using kernels::RingPartition, kernels::RowRing;

constexpr int64_t kMost = 4096;

std::vector<TokenPlace> places(int64_t tokens, int64_t documents) {
  std::vector<TokenPlace> all;
  const int64_t length = (tokens + documents - 1) / documents;
  for (int64_t n = 0; n < tokens; ++n) all.push_back({n / length, n % length});
  return all;
}

Visits visits_of(const PointwiseSettings& s) {
  const std::vector<TokenPlace> keys = places(s.sizes.keys, s.documents);
  return make_visits(s.mask, std::span(keys).last(static_cast<size_t>(s.sizes.queries)), keys,
                     kernels::kTileSizes);
}

// Problems whose operands go through rings, most of them in several partitions.
std::vector<Named> problems() {
  const PointwiseSettings one{.sizes = {1, 1, 1, 2200, 2200, 8, 16}};
  std::vector<Named> all;
  const auto add = [&](std::string name, const std::function<void(PointwiseSettings&)>& change) {
    all.push_back({std::move(name), one});
    change(all.back().settings);
  };
  add("window", [](auto& s) { s.mask.window = 30; });
  add("window and sinks", [](auto& s) { s.mask = {.window = 30, .sinks = 4}; });
  add("window and many sinks", [](auto& s) { s.mask = {.window = 25, .sinks = 97}; });
  add("documents", [](auto& s) { s.documents = 40; });
  add("documents with windows", [](auto& s) { s.documents = 9, s.mask.window = 30; });
  add("later queries",
      [](auto& s) { s.sizes.queries = 1100, s.mask = {.window = 30, .sinks = 4}; });
  add("groups of heads, temperatures, sink logits", [](auto& s) {
    s.sizes = {2, 4, 2, 1100, 1100, 16, 8};
    s.mask = {.window = 20, .sinks = 1};
    s.tau = s.sink = true;
  });
  add("soft-cap, slopes and dropout", [](auto& s) {
    s.mask = {.window = 30, .sinks = 2};
    s.soft_cap = 1.5;
    s.alibi = true;
    s.dropout = 0.1;
  });
  return all;
}

TEST(AttentionKernels, EqualTheFormulaWhereOperandsGoThroughRings) {
  for (const auto& [name, settings] : problems()) {
    const Visits visits = visits_of(settings);
    EXPECT_GT(kernels::key_ring(visits, kMost).keys, 0) << name;
    EXPECT_FALSE(kernels::row_ring(visits, kMost).partitions.empty()) << name;
    expect_truth<float>(settings, name);
    expect_truth<BFloat16>(settings, name);
  }
}

TEST(AttentionKernels, GiveTheSameBitsThroughRingsForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  for (const auto& [name, settings] : problems()) {
    omp_set_num_threads(1);
    const PointwiseNumbers alone = PointwiseProblem<float>(settings).by_kernels();
    for (const int threads : {2, 5}) {
      omp_set_num_threads(threads);
      const PointwiseNumbers together = PointwiseProblem<float>(settings).by_kernels();
      EXPECT_EQ(together.out, alone.out) << name;
      EXPECT_EQ(together.lse, alone.lse) << name;
      EXPECT_EQ(together.dq, alone.dq) << name;
      EXPECT_EQ(together.dk, alone.dk) << name;
      EXPECT_EQ(together.dv, alone.dv) << name;
      EXPECT_EQ(together.dtau, alone.dtau) << name;
      EXPECT_EQ(together.dsink, alone.dsink) << name;
    }
  }
  omp_set_num_threads(before);
}

// As without rings: tests/kernels/isolation_test.cpp.
TEST(AttentionKernels, KeepInfinityToTheRowsThatSeeItThroughRings) {
  PointwiseSettings s{.sizes = {1, 1, 1, 1100, 1100, 8, 8}};
  s.mask.window = 30;
  PointwiseProblem<float> clean(s), broken(s);
  constexpr int64_t kBad = 600;
  broken.values()[kBad * 8] = std::numeric_limits<float>::infinity();
  const PointwiseNumbers a = clean.by_kernels(), b = broken.by_kernels();
  for (int64_t i = 0; i < 1100; ++i) {
    const bool sees = i >= kBad && i < kBad + 30;
    EXPECT_EQ(std::isnan(b.out[i * 8]), sees) << i;
    EXPECT_EQ(std::isnan(b.dq[i * 8]), sees) << i;
    if (sees) continue;
    EXPECT_EQ(a.out[i * 8], b.out[i * 8]) << i;
    EXPECT_EQ(a.dq[i * 8], b.dq[i * 8]) << i;
  }
}

TEST(AttentionRing, HoldsWhatEveryBlockReachesAndEveryRowBelongsToOnePartition) {
  for (const auto& [name, settings] : problems()) {
    const Visits visits = visits_of(settings);
    const RowRing ring = kernels::row_ring(visits, kMost);
    const int64_t all = (visits.queries + 31) / 32 * 32;
    int64_t block = 0;
    std::vector<TileRange> rows;
    for (size_t n = 0; n < ring.partitions.size(); ++n) {
      const RingPartition& part = ring.partitions[n];
      EXPECT_EQ(part.block_begin, block) << name;
      const int64_t owned = ring.owned_end(static_cast<int64_t>(n), all);
      EXPECT_LE(part.row_begin, owned) << name;
      if (n > 0) {  // the one before it reaches no further than this one's own rows
        EXPECT_LE(ring.partitions[n - 1].row_end, owned) << name;
      }
      for (; block < part.block_end; ++block) {
        ring.rows_of(block, visits.by_key.of_block(block), rows);
        if (rows.empty()) continue;
        EXPECT_GE(rows.front().key_begin, part.row_begin) << name;
        EXPECT_LE(rows.back().key_end, part.row_end) << name;
        EXPECT_LE(rows.back().key_end - rows.front().key_begin, ring.rows) << name;
      }
    }
    EXPECT_EQ(block, visits.by_key.blocks()) << name;
  }
}

TEST(AttentionRing, RowsThatAreLeftToSinksSeeNothingElseOfTheirBlock) {
  for (const auto& [name, settings] : problems()) {
    const Visits visits = visits_of(settings);
    const RowRing ring = kernels::row_ring(visits, kMost);
    if (ring.kept == 0) continue;
    const std::vector<TokenPlace> keys = places(settings.sizes.keys, settings.documents);
    const int64_t first = settings.sizes.keys - settings.sizes.queries;
    for (int64_t i = ring.sink_begin; i < visits.queries; ++i) {
      for (int64_t j = settings.mask.sinks; j < kernels::kKeyBlock; ++j)
        ASSERT_FALSE(allowed(settings.mask, keys[first + i], keys[j])) << name << " " << i;
    }
    EXPECT_GE(ring.kept, settings.mask.sinks) << name;
  }
}

TEST(AttentionRing, IsNotForBlocksThatReachFarOrBack) {
  const auto none = [](const PointwiseSettings& s) {
    const Visits visits = visits_of(s);
    return kernels::key_ring(visits, 512).keys == 0 &&
           kernels::row_ring(visits, 512).partitions.empty();
  };
  PointwiseSettings s{.sizes = {1, 1, 1, 2000, 2000, 8, 8}};
  EXPECT_TRUE(none(s)) << "causal";
  s.mask = {.window = 1000};
  EXPECT_TRUE(none(s)) << "a window that is too long";
  s.mask = {.window = 30, .sinks = 200};
  EXPECT_TRUE(none(s)) << "too many sinks";
  s.mask = {.window = 30, .sinks = 4};
  s.documents = 4;
  EXPECT_TRUE(none(s)) << "sinks of several documents";
  s.mask = {.window = 3, .sparsity = MaskRule::Sparsity::strided, .stride = 50};
  s.documents = 1;
  EXPECT_TRUE(none(s)) << "strided";
  s.mask = {.window = 30};
  EXPECT_FALSE(none(s));
}

}  // namespace
}  // namespace fovea::attention_ring_test
