// Tiles that kernels judge by the positions of their ends, against the rule pair by pair.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_seen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fovea/base/rng.h"

namespace fovea::kernels::attention_seen_test {
namespace {

constexpr int32_t kWindow = 24;
constexpr int64_t kKeys = 2 * kPanel;

// A block of rows and some keys with ascending positions.
struct Scene {
  ForwardBlock<float> block;
  std::vector<int32_t> position, document, none, open, low, high;

  Scene(const VisitRule& rule, bool wide)
      : position(kKeys),
        document(kKeys, 0),
        none(kKeys, 0),
        open(kKeys, 0),
        low(kKeys, 0),
        high(kKeys, 0) {
    block.ordered = true;
    block.rule = rule;
    block.rows = kQueryBlock - 3;  // the last group is not full
    block.key_places = {position.data(), document.data(), none.data(),
                        open.data(),     low.data(),      wide ? high.data() : nullptr};
    for (int64_t row = 0; row < kQueryBlock; ++row) {
      block.document[row] = block.pattern_id[row] = 0;
      block.members_low[row] = block.members_high[row] = 0;
    }
  }
  // Steps of 1, or now and then a leap as long as a window, so that ends stand at bounds.
  void place(Rng& random, int32_t first_row, bool leaps) {
    const auto step = [&] {
      const double x = random.uniform();
      return leaps && x < 0.2 ? (x < 0.1 ? kWindow - 1 : 3) : 1;
    };
    int32_t at = 0;
    for (int32_t& p : position) p = at += step();
    at = first_row;
    for (int64_t row = 0; row < kQueryBlock; ++row) block.position[row] = at += step();
  }
  void draw_members(Rng& random) {
    const auto bit = [&] { return 1 << static_cast<int>(random.uniform() * 6.0); };
    for (int64_t n = 0; n < kKeys; ++n) low[n] = bit(), high[n] = bit();
    for (int64_t n = 0; n < kQueryBlock; ++n)
      block.members_low[n] = bit(), block.members_high[n] = bit();
  }
};

// Row by row, lane by lane of N vectors.
template <int N>
std::vector<bool> lanes(const Lanes (&seen)[kRows][N], int64_t rows) {
  std::vector<bool> out;
  for (int64_t r = 0; r < rows; ++r) {
    for (int lane = 0; lane < N * kLanes; ++lane)
      out.push_back(seen[r][lane / kLanes][lane % kLanes] != 0);
  }
  return out;
}

// What the rule tells of every pair, and what is said of the tile and of its halves.
void expect_covers(const Scene& scene, const std::string& what) {
  const ForwardBlock<float>& block = scene.block;
  const TileMask<float> mask(block);
  for (int g = 0; g * kRows < block.rows; ++g) {
    const int64_t rows = std::min<int64_t>(kRows, block.rows - g * kRows);
    for (int64_t key = 0; key < kKeys; key += kPanel) {
      Lanes pairs[kRows][2], band[kRows][2], half[kRows][1];
      mask.by_pairs(g * kRows, key, pairs);
      const std::vector<bool> truth = lanes(pairs, rows);
      const auto count = std::ranges::count(truth, true), size = std::ssize(truth);
      const Cover cover = mask.cover(g, key);
      if (cover == Cover::none) {
        EXPECT_EQ(count, 0) << what;
      }
      if (cover == Cover::all) {
        EXPECT_EQ(count, size) << what;
      }
      const bool one = scene.document[key] == scene.document[key + kPanel - 1] &&
                       block.document[g * kRows] == block.document[g * kRows + rows - 1] &&
                       block.document[g * kRows] == scene.document[key];
      EXPECT_EQ(cover == Cover::unknown, !one) << what;
      if (!one) continue;
      if (!mask.compares() && count == size) {
        EXPECT_EQ(cover, Cover::all) << what;
      }
      const int64_t nearest = int64_t{block.position[g * kRows]} - scene.position[key + kPanel - 1],
                    farthest = int64_t{block.position[g * kRows + rows - 1]} - scene.position[key];
      if (farthest < 0 || (block.rule.limited && nearest >= block.rule.reach)) {
        EXPECT_EQ(cover, Cover::none) << what;
      }
      mask.by_band(g * kRows, key, band);
      EXPECT_EQ(lanes(band, rows), truth) << what;
      for (int v = 0; v < 2; ++v) {
        mask.by_band(g * kRows, key + v * kLanes, half);
        const std::vector<bool> part = lanes(half, rows);
        const auto seen = std::ranges::count(part, true);
        const Cover of_half = mask.cover(g, key, v, v + 1);
        if (of_half == Cover::none) {
          EXPECT_EQ(seen, 0) << what;
        }
        if (of_half == Cover::all) {
          EXPECT_EQ(seen, std::ssize(part)) << what;
        }
      }
    }
  }
}

TEST(RowTiles, CoverTheRowsUpToAMultipleAndNoMore) {
  for (int64_t rows = 1; rows <= 2 * kKeyBlock; ++rows) {
    const RowTiles<kRows + 2> tiles(rows);
    const int64_t end = (rows + kRows - 1) / kRows * kRows;
    EXPECT_EQ(tiles.first(0), 0);
    EXPECT_EQ(tiles.first(tiles.count()), end) << rows;
    for (int g = 0; g < tiles.count(); ++g) {
      EXPECT_EQ(tiles.first(g) + tiles.rows(g), tiles.first(g + 1)) << rows;
      for (int64_t row = tiles.first(g); row < tiles.first(g + 1); ++row)
        EXPECT_EQ(tiles.of(row), g) << rows;
    }
  }
  EXPECT_EQ(RowTiles<kRows>(5 * kRows).count(), 5);
}

const std::vector<std::pair<std::string, VisitRule>> kRules{
    {"plain", {.causal = true}},
    {"near", {.causal = true, .limited = true, .reach = kWindow}},
    {"meet or near", {.causal = true, .members = MemberRule::meet_or_near, .near = kWindow}},
    {"apart", {.causal = true, .members = MemberRule::apart}}};

TEST(AttentionKernels, EndsOfATileTellWhatTheRuleTells) {
  Rng random(3);
  for (const auto& [name, rule] : kRules) {
    for (const bool leaps : {false, true}) {
      // The first row passes every distance to the keys, one by one.
      for (int32_t first = -kQueryBlock - 2; first < static_cast<int32_t>(kKeys) + 3 * kWindow;
           ++first) {
        Scene scene(rule, first % 2 == 0);
        scene.place(random, first, leaps);
        scene.draw_members(random);
        expect_covers(scene, name + ", first row at " + std::to_string(first));
      }
    }
  }
}

// Sinks are seen from any distance: of tiles that hold one, less is told.
TEST(AttentionKernels, EndsOfATileTellWhetherItHoldsSinks) {
  Rng random(6);
  const VisitRule rule{.causal = true, .limited = true, .reach = kWindow, .opens = true};
  int all = 0, none = 0;
  for (int64_t sinks = 1; sinks <= kKeys; ++sinks) {
    for (const int32_t first : {-kPanel, 0, kPanel / 2, 2 * kWindow, 1000}) {
      Scene scene(rule, false);
      scene.place(random, first, first % 2 == 0);
      for (int64_t n = 0; n < sinks; ++n) scene.open[n] = TokenColumns::kOpenBefore;
      const TileMask<float> mask(scene.block);
      for (int g = 0; (g + 1) * kRows <= scene.block.rows; ++g) {
        for (int64_t key = 0; key < kKeys; key += kPanel) {
          Lanes pairs[kRows][2];
          mask.by_pairs(g * kRows, key, pairs);
          const std::vector<bool> truth = lanes(pairs, kRows);
          const Cover cover = mask.cover(g, key);
          if (cover == Cover::none) {
            EXPECT_EQ(std::ranges::count(truth, true), 0) << sinks << " " << first;
            ++none;
          }
          if (cover == Cover::all) {
            EXPECT_EQ(std::ranges::count(truth, false), 0) << sinks << " " << first;
            ++all;
          }
          if (key >= sinks) {
            EXPECT_NE(cover, Cover::unknown) << sinks << " " << first;
          }
          if (cover != Cover::band) continue;
          Lanes band[kRows][2];
          mask.by_band(g * kRows, key, band);
          EXPECT_EQ(lanes(band, kRows), truth) << sinks << " " << first;
        }
      }
    }
  }
  EXPECT_GT(all, 100);
  EXPECT_GT(none, 100);
}

TEST(AttentionKernels, EndsOfATileInTwoDocumentsTellNothing) {
  Rng random(4);
  for (const auto& [name, rule] : kRules) {
    for (int32_t cut = 1; cut < static_cast<int32_t>(kKeys); ++cut) {
      Scene scene(rule, false);
      scene.place(random, 0, false);
      scene.draw_members(random);
      for (int64_t n = cut; n < kKeys; ++n) scene.document[n] = 1, scene.position[n] -= cut;
      for (int64_t row = cut; row < kQueryBlock; ++row)
        scene.block.document[row] = 1, scene.block.position[row] -= cut;
      expect_covers(scene, name + ", cut at " + std::to_string(cut));
    }
  }
}

// Of far keys, whose memberships alone decide.
TEST(AttentionKernels, SetsOfATileTellWhatTheRuleTells) {
  Rng random(5);
  const VisitRule rule{.causal = true, .members = MemberRule::meet_or_near, .near = kWindow};
  int met = 0, apart = 0;
  for (int round = 0; round < 400; ++round) {
    Scene scene(rule, round % 2 == 0);
    scene.place(random, 1000, false);
    scene.draw_members(random);
    if (round % 4 > 1) {  // rows in one group, keys in another but for one of them
      for (int64_t n = 0; n < kKeys; ++n) scene.low[n] = scene.high[n] = 1;
      for (int64_t n = 0; n < kQueryBlock; ++n)
        scene.block.members_low[n] = scene.block.members_high[n] = 2;
      if (round % 8 > 3) scene.low[random.uniform() < 0.5 ? kLanes - 1 : kLanes] = 2;
    }
    const TileMask<float> mask(scene.block);
    for (int g = 0; (g + 1) * kRows <= scene.block.rows; ++g) {
      ASSERT_TRUE(mask.sets_decide(g));
      Lanes pairs[kRows][2], sets[kRows][2];
      EXPECT_EQ(mask.by_sets(g, 0, sets), mask.by_pairs(g * kRows, 0, pairs)) << round;
      if (mask.by_sets(g, 0, sets)) {
        EXPECT_EQ(lanes(sets, kRows), lanes(pairs, kRows)) << round;
      }
      ++(mask.by_sets(g, 0, sets) ? met : apart);
    }
    EXPECT_FALSE(mask.sets_decide(kQueryBlock / kRows - 1));
  }
  EXPECT_GT(met, 100);
  EXPECT_GT(apart, 100);
}

}  // namespace
}  // namespace fovea::kernels::attention_seen_test
