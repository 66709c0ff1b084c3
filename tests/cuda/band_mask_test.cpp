// Band masks: which plans the CUDA kernels can follow, and how they read them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/attention/band_mask.h"

#include <gtest/gtest.h>

namespace fovea::band_mask_test {
namespace {

using kernels::cuda::band_mask_of;
using kernels::cuda::BandMask;

constexpr TileSizes kTiles{.queries = 128, .keys = 128, .tile = 64};

// Documents of these lengths, one after the other.
std::vector<TokenPlace> packed(const std::vector<int64_t>& lengths) {
  std::vector<TokenPlace> places;
  for (size_t n = 0; n < lengths.size(); ++n)
    for (int64_t i = 0; i < lengths[n]; ++i)
      places.push_back({.document = static_cast<int64_t>(n), .position = i});
  return places;
}

BandMask band(const MaskRule& rule, const std::vector<TokenPlace>& queries,
              const std::vector<TokenPlace>& keys) {
  const Visits visits = make_visits(rule, queries, keys, kTiles);
  return band_mask_of({&visits, 1});
}

// Whether query i sees key j by the band, as the kernels read it.
bool sees(const BandMask& band, int64_t i, int64_t j) {
  if (!band.causal) return true;
  const int64_t position = band.query_offset + i;
  const int64_t start = band.doc_start.empty() ? 0 : band.doc_start[static_cast<size_t>(i)];
  if (j > position || j < start) return false;
  return band.window == 0 || position - j < band.window || j < start + band.sinks;
}

TEST(BandMask, SeesThePairsThatTheRuleAllows) {
  const std::vector<MaskRule> rules{
      {}, {.window = 5}, {.window = 4, .sinks = 2}, {.causal = false}};
  for (const MaskRule& rule : rules) {
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{23}, {9, 14}, {1, 2, 20}, {20, 3}}) {
      if (!rule.causal && lengths.size() > 1) continue;
      const std::vector<TokenPlace> keys = packed(lengths);
      for (const size_t first : {size_t{0}, size_t{7}, keys.size() - 1}) {
        const std::vector<TokenPlace> queries(keys.begin() + static_cast<std::ptrdiff_t>(first),
                                              keys.end());
        const BandMask mask = band(rule, queries, keys);
        ASSERT_EQ(mask.why_not, std::nullopt);
        for (size_t i = 0; i < queries.size(); ++i)
          for (size_t j = 0; j < keys.size(); ++j)
            EXPECT_EQ(sees(mask, static_cast<int64_t>(i), static_cast<int64_t>(j)),
                      allowed(rule, queries[i], keys[j]))
                << "window " << rule.window << ", query " << i << ", key " << j;
      }
    }
  }
}

TEST(BandMask, RowsOfABatchHaveDocumentsOfTheirOwn) {
  const std::vector<TokenPlace> one = packed({12}), two = packed({5, 7});
  const std::vector<Visits> rows{make_visits({}, one, one, kTiles),
                                 make_visits({}, two, two, kTiles)};
  const BandMask mask = band_mask_of(rows);
  ASSERT_EQ(mask.why_not, std::nullopt);
  ASSERT_EQ(mask.doc_start.size(), 24u);
  EXPECT_EQ(mask.doc_start[11], 0);
  EXPECT_EQ(mask.doc_start[12 + 4], 0);
  EXPECT_EQ(mask.doc_start[12 + 5], 5);
}

TEST(BandMask, TellsWhetherDocumentsAreThereFromTheirStart) {
  std::vector<TokenPlace> text = packed({5, 7});
  EXPECT_TRUE(band({}, text, text).from_start);
  text.erase(text.begin());
  EXPECT_FALSE(band({}, text, text).from_start);
}

TEST(BandMask, RefusesMasksThatAreNoBand) {
  using Sparsity = MaskRule::Sparsity;
  const std::vector<TokenPlace> text = packed({20});
  const auto refused = [&](const MaskRule& rule) {
    return band(rule, text, text).why_not.has_value();
  };
  EXPECT_TRUE(refused({.window = 3, .sparsity = Sparsity::strided, .stride = 5}));
  EXPECT_TRUE(refused({.sparsity = Sparsity::fixed, .block = 6, .summary = 2}));
  EXPECT_TRUE(refused({.causal = false, .window = 3}));
  const std::vector<TokenPlace> documents = packed({9, 11});
  EXPECT_TRUE(band({.causal = false}, documents, documents).why_not.has_value());
  std::vector<TokenPlace> gap = text;
  for (size_t n = 10; n < gap.size(); ++n) gap[n].position += 3;  // keys that a cache has dropped
  EXPECT_TRUE(band({}, gap, gap).why_not.has_value());
  std::vector<TokenPlace> late = text;
  for (TokenPlace& place : late) place.position += 8;
  EXPECT_EQ(band({.window = 4}, late, late).why_not, std::nullopt);
  EXPECT_TRUE(band({}, late, text).why_not.has_value());  // queries beyond the keys
}

}  // namespace
}  // namespace fovea::band_mask_test
