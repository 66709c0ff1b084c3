// Everything around the instructions for bfloat16, on CPUs that lack them: layouts, tails, masks,
// order.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <vector>

#include "fovea/kernels/common/pair_products.h"
#include "fovea/kernels/cpu/pointwise/attention_table.h"
#include "tests/support/pointwise_truth.h"

namespace fovea {
namespace kernels {
const AttentionTable<BFloat16>* emulated_tiles();
}

namespace {

using namespace fovea::testing;

// The kernels with emulated tiles; null where the code around the tiles, and the table's own,
// cannot run.
const kernels::AttentionTable<BFloat16>* emulated() {
  if (found_isa() < Isa::avx512) {
    std::cout << "not run: the code around the tiles needs AVX-512\n";
    return nullptr;
  }
  const auto* const table = kernels::emulated_tiles();
  EXPECT_STREQ(table != nullptr ? table->isa : "none", "emulated tiles");
  return table;
}

// Queries and keys in eighths: their products are exact in any order of sums, so that the powers of
// two are of the same numbers.
PointwiseNumbers by_kernels_of_eighths(const PointwiseSettings& settings) {
  PointwiseProblem<BFloat16> problem(settings);
  for (std::vector<BFloat16>* const all : {&problem.queries(), &problem.keys()})
    for (BFloat16& x : *all) from_float(std::round(8.0f * to_float(x)) / 8.0f, x);
  return problem.by_kernels();
}

TEST(AttentionTiles, EqualTheFormulaForEveryStageAndOddLengths) {
  const auto* const table = emulated();
  if (table == nullptr) return;
  for (const int64_t tokens : {1, 19, 97}) {
    for (auto& [name, settings] : every_stage(tokens, 24)) {
      settings.table = table;
      expect_truth<BFloat16>(settings, name);
    }
  }
}

TEST(AttentionTiles, EqualTheFormulaForEveryWidthAndOverSeveralBlocks) {
  const auto* const table = emulated();
  if (table == nullptr) return;
  for (const int64_t width : {8, 40, 64, 128, 256}) {
    PointwiseSettings s{.sizes = {1, 2, 1, 66, 66, width, 264 - width}};
    s.scale = 1.0 / std::sqrt(static_cast<double>(width)), s.table = table;
    expect_truth<BFloat16>(s, "width " + std::to_string(width));
  }
  expect_truth<BFloat16>({.sizes = {1, 1, 1, 300, 300, 16, 8}, .table = table}, "several blocks");
  expect_truth<BFloat16>({.sizes = {1, 4, 2, 70, 133, 16, 40}, .table = table},
                         "more keys than queries");
}

TEST(AttentionTiles, GiveTheNumbersOfTheOtherKernels) {
  PointwiseSettings s{.sizes = {2, 4, 2, 150, 150, 64, 64}};
  const PointwiseNumbers other = by_kernels_of_eighths(s);
  s.table = emulated();
  if (s.table == nullptr) return;
  const PointwiseNumbers got = by_kernels_of_eighths(s);
  // Products of pairs sum rounded weights (Pair::row_sums()), others the weights themselves.
  EXPECT_LT(numbers_error(got.lse, other.lse), multiplies_pairs() ? 1e-6 : 1e-3);
  EXPECT_LT(numbers_error(got.out, other.out), 8e-3);  // one rounding to bfloat16
  EXPECT_LT(numbers_error(got.dk, other.dk), 1e-2);
}

}  // namespace
}  // namespace fovea
