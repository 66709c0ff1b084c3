// The kernels of selectors: the largest scores, and every instruction set against scalar loops.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <type_traits>

#include "tests/support/kernels_of_this_machine.h"
#include "tests/support/normal_floats.h"

namespace fovea::kernels::selector_test {
namespace {

using testing::kernels_of_this_machine;
using testing::normal_floats;

std::vector<float> block_maxima(const std::vector<float>& x) {
  std::vector<float> maxima;
  for (size_t n = 0; n < x.size(); n += kScoreBlock)
    maxima.push_back(*std::max_element(
        x.begin() + static_cast<int64_t>(n),
        x.begin() + std::min<int64_t>(static_cast<int64_t>(n) + kScoreBlock, std::ssize(x))));
  return maxima;
}

std::vector<int32_t> sorted_first(const std::vector<float>& x, int64_t count) {
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return x[a] > x[b]; });
  order.resize(static_cast<size_t>(std::min<int64_t>(count, std::ssize(x))));
  std::ranges::sort(order);
  return order;
}

template <class T>
std::vector<T> as(const std::vector<float>& x) {
  std::vector<T> y(x.size());
  for (size_t n = 0; n < x.size(); ++n) from_float(x[n], y[n]);
  return y;
}

// Every instruction set; with `ties`, many scores are equal, and some are -0.
TEST(LargestScores, AreThoseOfASortForEverySizeAndWithTies) {
  for (const SelectorTable<float>* table : kernels_of_this_machine<SelectorTable<float>>()) {
    for (const int64_t size : {1, 15, 16, 17, 100, 1000, 5000}) {
      for (const bool ties : {false, true}) {
        std::vector<float> x = normal_floats(size, static_cast<uint64_t>(size));
        if (ties)
          for (float& n : x) n = std::round(n);
        for (const int64_t wanted : {1, 3, 17, 128, 5000}) {
          const int64_t count = std::min(wanted, size);
          std::vector<int32_t> memory(static_cast<size_t>(largest_memory(size))),
              list(static_cast<size_t>(count));
          table->largest(x.data(), block_maxima(x).data(), size, count, memory.data(), list.data());
          EXPECT_EQ(list, sorted_first(x, count)) << size << " " << count;
        }
      }
    }
  }
  EXPECT_TRUE(largest_scores(normal_floats(20, 1), block_maxima(normal_floats(20, 1)), 0).empty());
  EXPECT_EQ(
      std::ssize(largest_scores(normal_floats(20, 1), block_maxima(normal_floats(20, 1)), 30)), 20);
}

TEST(LargestScores, OfNumbersThatAreNotFiniteAreAsManyAndAscend) {
  std::vector<float> x = normal_floats(1000, 3);
  for (size_t n = 0; n < x.size(); n += 3) x[n] = n % 2 == 0 ? NAN : INFINITY;
  for (const SelectorTable<float>* table : kernels_of_this_machine<SelectorTable<float>>()) {
    std::vector<int32_t> memory(static_cast<size_t>(largest_memory(1000))), list(20, -1);
    table->largest(x.data(), block_maxima(x).data(), 1000, 20, memory.data(), list.data());
    EXPECT_TRUE(std::ranges::is_sorted(list, std::less_equal<>()));
    EXPECT_GE(list.front(), 0);
    EXPECT_LT(list.back(), 1000);
  }
}

struct ChoiceSizes {
  int64_t length, count, heads, width;
};

// Keys by component whose runs end where those of the next component begin.
template <class T>
void expect_weights(const ChoiceSizes& s) {
  std::vector<int32_t> components;
  for (int64_t c = 0; c < s.count; ++c)
    components.push_back(static_cast<int32_t>(s.count == s.width ? c : c * s.width / s.count));
  const std::vector<T> keys = as<T>(normal_floats(s.width * s.length, 1));
  const std::vector<T> given = as<T>(normal_floats(s.heads * s.count, 2));
  std::vector<float> q, scales;
  for (const T x : given) q.push_back(to_float(x));
  for (int64_t h = 0; h < s.heads; ++h) scales.push_back(0.1f * static_cast<float>(h + 1));
  std::vector<double> truth(static_cast<size_t>(s.heads * s.length));
  for (int64_t h = 0; h < s.heads; ++h) {
    double total = 0.0;
    double* const row = truth.data() + h * s.length;
    for (int64_t j = 0; j < s.length; ++j) {
      double sum = 0.0;
      for (int64_t c = 0; c < s.count; ++c)
        sum +=
            q[h * s.count + c] * static_cast<double>(to_float(keys[components[c] * s.length + j]));
      total += row[j] = std::exp(sum * scales[h]);
    }
    for (int64_t j = 0; j < s.length; ++j) row[j] /= total;
  }
  for (const SelectorTable<T>* table : kernels_of_this_machine<SelectorTable<T>>()) {
    RowWeights rows{.heads = s.heads, .length = s.length};
    rows.pitch = rows.tiles() * kWeightTile;
    std::vector<float> weights(static_cast<size_t>(s.heads * rows.pitch)),
        factors(static_cast<size_t>(s.heads * rows.tiles())), scores(static_cast<size_t>(s.length)),
        maxima(static_cast<size_t>((s.length + kScoreBlock - 1) / kScoreBlock));
    std::vector<T> memory(static_cast<size_t>(s.count * kWeightTile));
    rows.weights = weights.data(), rows.factors = factors.data();
    table->component_weights({.keys = keys.data(),
                              .component = s.length,
                              .components = components.data(),
                              .count = s.count,
                              .q = q.data(),
                              .scales = scales.data(),
                              .memory = memory.data()},
                             rows);
    table->scores(rows, s.length, scores.data(), maxima.data());
    for (int64_t j = 0; j < s.length; ++j) {
      double score = 0.0;
      for (int64_t h = 0; h < s.heads; ++h) {
        const double weight =
            weights[h * rows.pitch + j] * factors[h * rows.tiles() + j / kWeightTile];
        ASSERT_NEAR(weight / truth[h * s.length + j], 1.0, 1e-5) << h << " " << j;
        score += weight;
      }
      ASSERT_NEAR(scores[j] / score, 1.0, 1e-5) << j;
    }
    EXPECT_EQ(maxima, block_maxima(scores));
  }
}

TEST(SelectorKernels, WeightsByComponentsAreThoseOfScalarLoopsForEverySize) {
  for (const ChoiceSizes& sizes : std::vector<ChoiceSizes>{{1, 1, 1, 1},
                                                           {31, 3, 2, 5},
                                                           {32, 2, 4, 8},
                                                           {257, 16, 4, 16},
                                                           {700, 7, 7, 24},
                                                           {1024, 1, 16, 4},
                                                           {2500, 32, 5, 64}}) {
    expect_weights<float>(sizes);
    expect_weights<BFloat16>(sizes);
  }
}

// Rows lie one behind the other: those of one must leave the next as it is.
TEST(SelectorKernels, WeightsOfGivenLogitsAreThoseOfScalarLoops) {
  for (const int64_t length : {1, 15, 256, 300, 2500}) {
    const std::vector<float> logits = normal_floats(2 * length + 1, 8);
    for (const SelectorTable<float>* table : kernels_of_this_machine<SelectorTable<float>>()) {
      std::vector<float> weights = logits;
      RowWeights rows{.weights = weights.data(), .pitch = length, .heads = 2, .length = length};
      std::vector<float> factors(static_cast<size_t>(2 * rows.tiles()));
      rows.factors = factors.data();
      table->logit_weights(rows);
      EXPECT_EQ(weights.back(), logits.back());
      for (int64_t h = 0; h < 2; ++h) {
        double total = 0.0;
        for (int64_t j = 0; j < length; ++j)
          total += std::exp(static_cast<double>(logits[h * length + j]));
        for (int64_t j = 0; j < length; ++j) {
          const double truth = std::exp(static_cast<double>(logits[h * length + j])) / total;
          const double weight =
              weights[h * length + j] * factors[h * rows.tiles() + j / kWeightTile];
          ASSERT_NEAR(weight / truth, 1.0, 1e-5) << h << " " << j;
        }
      }
    }
  }
}

template <class T>
void expect_listed_loops() {
  const int64_t width = 24;
  const std::vector<T> keys = as<T>(normal_floats(width * 120, 1));
  for (const SelectorTable<T>* table : kernels_of_this_machine<SelectorTable<T>>()) {
    const std::vector<int32_t> list{0, 5, 99, 2, 40};
    const std::vector<float> row = normal_floats(width, 4),
                             some = normal_floats(std::ssize(list), 5);
    const ListedRows<T> rows{.data = keys.data(),
                             .row = 26,
                             .width = width,
                             .list = list.data(),
                             .count = std::ssize(list)};
    std::vector<float> products(list.size()), sums(static_cast<size_t>(width));
    table->products(row.data(), rows, products.data());
    table->weighted_sum(some.data(), rows, sums.data());
    for (size_t n = 0; n < list.size(); ++n) {
      double sum = 0.0;
      for (int64_t c = 0; c < width; ++c)
        sum += row[c] * static_cast<double>(to_float(keys[list[n] * 26 + c]));
      EXPECT_NEAR(products[n], sum, 1e-5);
    }
    for (int64_t c = 0; c < width; ++c) {
      double sum = 0.0;
      for (size_t n = 0; n < list.size(); ++n)
        sum += some[n] * static_cast<double>(to_float(keys[list[n] * 26 + c]));
      EXPECT_NEAR(sums[c], sum, 1e-5);
    }
  }
}

TEST(SelectorKernels, ListedRowsAreThoseOfScalarLoops) {
  expect_listed_loops<float>();
  expect_listed_loops<BFloat16>();
}

}  // namespace
}  // namespace fovea::kernels::selector_test
