// The kernels of selectors: the largest scores, and every instruction set against scalar loops.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fovea/base/rng.h"
#include "fovea/kernels/cpu/isa.h"

namespace fovea::kernels {
namespace {

std::vector<float> normal(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& n : x) n = static_cast<float>(rng.normal());
  return x;
}

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

TEST(LargestScores, AreThoseOfASortForEverySizeAndWithTies) {
  for (const int64_t size : {1, 15, 16, 17, 100, 1000, 5000}) {
    for (const bool ties : {false, true}) {
      std::vector<float> x = normal(size, static_cast<uint64_t>(size));
      if (ties)
        for (float& n : x) n = std::round(n);
      for (const int64_t count : {0, 1, 3, 17, 128, 5000})
        EXPECT_EQ(largest_scores(x, block_maxima(x), count), sorted_first(x, count))
            << size << " " << count;
    }
  }
}

template <class T>
std::vector<T> as(const std::vector<float>& x) {
  std::vector<T> y(x.size());
  for (size_t n = 0; n < x.size(); ++n) from_float(x[n], y[n]);
  return y;
}

template <class T>
std::vector<const SelectorTable<T>*> tables() {
  std::vector<const SelectorTable<T>*> all{&selector_scalar<T>()};
#if defined(__x86_64__)
  if (found_isa() >= Isa::avx2) all.push_back(&selector_avx2<T>());
  if (found_isa() >= Isa::avx512) all.push_back(&selector_avx512<T>());
#endif
  return all;
}

template <class T>
void expect_scalar_loops() {
  const int64_t length = 2500, pitch = 2600, width = 24, heads = 3;
  const std::vector<int32_t> components{2, 3, 7, 11, 19, 23};
  const auto count = std::ssize(components);
  const std::vector<T> keys = as<T>(normal(width * pitch, 1));
  const std::vector<float> q = normal(heads * count, 2);
  for (const SelectorTable<T>* table : tables<T>()) {
    std::vector<float> logits(static_cast<size_t>(heads * length));
    table->component_logits(keys.data(), pitch, components.data(), count, q.data(), heads,
                            logits.data(), length);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t j = 0; j < length; ++j) {
        double sum = 0.0;
        for (int64_t c = 0; c < count; ++c)
          sum += q[h * count + c] * static_cast<double>(to_float(keys[components[c] * pitch + j]));
        ASSERT_NEAR(logits[h * length + j], sum, 1e-5) << h << " " << j;
      }
    }
    std::vector<float> weights = logits;
    std::vector<float> factors, scores(static_cast<size_t>(length)),
        maxima(static_cast<size_t>((length + kScoreBlock - 1) / kScoreBlock));
    for (int64_t h = 0; h < heads; ++h)
      factors.push_back(table->exponentials(weights.data() + h * length, length));
    table->scores(weights.data(), length, factors.data(), heads, length, scores.data(),
                  maxima.data());
    EXPECT_EQ(maxima, block_maxima(scores));
    EXPECT_NEAR(std::accumulate(scores.begin(), scores.end(), 0.0), heads, 1e-4);
    const std::vector<int32_t> list{0, 5, 99, 2, 40};
    const std::vector<float> row = normal(width, 4), some = normal(std::ssize(list), 5);
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

TEST(SelectorKernels, EqualScalarLoopsOnEveryInstructionSet) {
  expect_scalar_loops<float>();
  expect_scalar_loops<BFloat16>();
}

}  // namespace
}  // namespace fovea::kernels
