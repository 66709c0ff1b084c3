// The kernels of sampled keys: every instruction set against loops in double precision, the search
// for keys that are met twice, and whole queries on any number of threads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/sampling.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fovea/base/rng.h"
#include "tests/support/kernels_of_this_machine.h"
#include "tests/support/normal_floats.h"

namespace fovea::kernels::sampling_test {
namespace {

using testing::kernels_of_this_machine;
using testing::normal_floats;

TEST(HashSigns, AreThoseOfProductsForEveryInstructionSet) {
  for (const int64_t d : {1, 7, 64}) {
    for (const int64_t count : {1, 3, 4, 9}) {
      HashRule rule{.tables = 5, .bits = 13, .head_dim = d};  // 65 directions
      std::vector<float> directions = normal_floats(rule.panels() * d * kHashPanel, 1);
      rule.directions = directions.data();
      const std::vector<float> rows = normal_floats(count * d, 2);
      for (const SamplingTable* table : kernels_of_this_machine<SamplingTable>()) {
        std::vector<uint32_t> words(static_cast<size_t>(count * (rule.panels() + 1)), 7u);
        table->signs(rule, rows.data(), count, words.data());
        for (int64_t r = 0; r < count; ++r) {
          const uint32_t* const row = words.data() + r * (rule.panels() + 1);
          EXPECT_EQ(row[rule.panels()], 0u);
          for (int64_t n = 0; n < rule.panels() * kHashPanel; ++n) {
            double product = 0.0;
            for (int64_t c = 0; c < d; ++c)
              product += static_cast<double>(rows[r * d + c]) *
                         directions[(n / kHashPanel * d + c) * kHashPanel + n % kHashPanel];
            if (std::abs(product) < 1e-5) continue;
            EXPECT_EQ((row[n / kHashPanel] >> (n % kHashPanel)) & 1u, product > 0.0 ? 1u : 0u);
          }
        }
      }
    }
  }
}

TEST(HashRows, TakeTheirBitsTableByTableOnAnyNumberOfThreads) {
  const int64_t d = 24, count = 200;
  for (const int64_t bits : {1, 10, 17, 30}) {
    HashRule rule{.tables = 41, .bits = bits, .head_dim = d};
    const std::vector<float> directions = normal_floats(rule.panels() * d * kHashPanel, 3);
    rule.directions = directions.data();
    const std::vector<float> rows = normal_floats(count * d, 4);
    std::vector<uint32_t> words(static_cast<size_t>(count * (rule.panels() + 1)));
    sampling_table().signs(rule, rows.data(), count, words.data());
    const int threads = omp_get_max_threads();
    for (const int some : {1, 3}) {
      omp_set_num_threads(some);
      std::vector<int32_t> hashes(static_cast<size_t>(count * rule.tables), -1);
      run(RowHashes{rule, rows.data(), count, hashes.data()});
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t l = 0; l < rule.tables; ++l) {
          int32_t expected = 0;
          for (int64_t n = 0; n < bits; ++n) {
            const int64_t at = l * bits + n;
            const uint32_t word =
                words[static_cast<size_t>(r * (rule.panels() + 1) + at / kHashPanel)];
            expected |= static_cast<int32_t>((word >> (at % kHashPanel)) & 1u) << n;
          }
          ASSERT_EQ(hashes[static_cast<size_t>(r * rule.tables + l)], expected) << bits << " " << l;
        }
      }
    }
    omp_set_num_threads(threads);
  }
}

// f(w) = a cubic, which the curve gives without error; 0.5 more for cosines below 0.
double cubic(double w, bool opposite) {
  return 1.0 - 2.0 * w + 3.0 * w * w - 1.5 * w * w * w + (opposite ? 0.5 : 0.0);
}
std::vector<float> cubic_curve() {
  std::vector<float> nodes;
  for (const bool opposite : {false, true}) {
    for (int64_t n = 0; n <= kWeightCells; ++n) {
      const double w = static_cast<double>(n) / kWeightCells;
      nodes.push_back(static_cast<float>(cubic(w, opposite)));
      nodes.push_back(static_cast<float>((-2.0 + 6.0 * w - 4.5 * w * w) / kWeightCells));
    }
  }
  return nodes;
}

TEST(SampledWeights, AreTheSoftmaxWithTheCurveForEveryInstructionSet) {
  const std::vector<float> curve = cubic_curve();
  for (const int64_t count : {1, 2, 16, 37, 500}) {
    for (const int64_t sampled : {int64_t{0}, count / 2, count}) {
      std::vector<int32_t> list;
      for (int64_t n = 0; n < count; ++n) list.push_back(static_cast<int32_t>((n * 7) % count));
      std::vector<float> lengths = normal_floats(count, 5);
      for (float& x : lengths) x = std::abs(x) + 0.5f;
      const std::vector<float> products = normal_floats(count, 6);
      constexpr double kMost = 0.99999988f;  // of a cosine
      const double scale = 0.3, centre = 0.2, query = 2.5;
      std::vector<double> logits;
      for (int64_t n = 0; n < count; ++n) {
        logits.push_back(products[n] * scale);
        const double cosine =
            std::clamp((products[n] - centre) / (query * lengths[list[n]]), -kMost, kMost);
        if (n < sampled)
          logits.back() += cubic(std::sqrt(std::sqrt(1.0 - std::abs(cosine))), cosine < 0.0);
      }
      const double top = *std::ranges::max_element(logits);
      double total = 0.0;
      for (const double x : logits) total += std::exp(x - top);
      for (const SamplingTable* table : kernels_of_this_machine<SamplingTable>()) {
        std::vector<float> x = products;
        const WeightTotal sum = table->weights({.products = x.data(),
                                                .list = list.data(),
                                                .count = count,
                                                .sampled = sampled,
                                                .scale = static_cast<float>(scale),
                                                .with_centre = static_cast<float>(centre),
                                                .query_length = static_cast<float>(query),
                                                .lengths = lengths.data(),
                                                .log_weights = curve.data()});
        EXPECT_NEAR(sum.top, top, 2e-5);
        EXPECT_NEAR(sum.total, total, 2e-5 * total);
        for (int64_t n = 0; n < count; ++n)
          EXPECT_NEAR(x[n], std::exp(logits[n] - top), 2e-5) << n << " of " << count;
      }
    }
  }
}

// Keys without a direction, products that are no numbers: nothing outside the curve is read.
TEST(SampledWeights, OfNumbersThatAreNotFiniteReadTheCurveOnly) {
  const std::vector<float> curve = cubic_curve();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> lengths{0.0f, 1.0f, inf, NAN};
  for (const SamplingTable* table : kernels_of_this_machine<SamplingTable>()) {
    for (const float product : {0.0f, 1.0f, -5.0f, inf, -inf, NAN}) {
      std::vector<float> x(20, product);
      std::vector<int32_t> list;
      for (int32_t n = 0; n < 20; ++n) list.push_back(n % 4);
      const WeightTotal sum = table->weights({.products = x.data(),
                                              .list = list.data(),
                                              .count = 20,
                                              .sampled = 20,
                                              .query_length = 1.0f,
                                              .lengths = lengths.data(),
                                              .log_weights = curve.data()});
      EXPECT_EQ(std::isnan(sum.total), !std::isfinite(product)) << product;
    }
  }
}

// Rows with centres of their own: pairs whose hashes are the same in two tables or more.
TEST(FindCollisions, CountTheTablesOfEveryPairForEveryInstructionSet) {
  for (const int64_t bits : {1, 3, 10}) {
    for (const int64_t heads : {1, 2, 3, 5}) {
      const int64_t count = 7, rows = 19, keys = 570, pitch = 576, hashes = count * bits;
      const std::vector<float> of_keys = normal_floats(hashes * pitch, 1),
                               of_centres = normal_floats(rows * hashes, 2);
      std::vector<int32_t> of_queries;
      Rng rng(3);
      for (int64_t n = 0; n < heads * rows * hashes; ++n)
        of_queries.push_back(rng.below(2) == 1 ? -1 : 0);
      std::vector<int64_t> ends;
      for (int64_t row = 0; row < rows; ++row) ends.push_back(row * 37 % (keys + 1));
      const int64_t words = pitch / kHashPanel;
      std::vector<uint32_t> twice(static_cast<size_t>(heads * rows * words), 9);
      const CentredHashes pairs{.tables = count,
                                .bits = bits,
                                .heads = heads,
                                .rows = rows,
                                .of_keys = of_keys.data(),
                                .pitch = pitch,
                                .of_centres = of_centres.data(),
                                .of_queries = of_queries.data(),
                                .ends = ends.data(),
                                .twice = twice.data()};
      // Of all keys, and of those before the rows' ends.
      std::vector<uint32_t> all(twice.size(), 0), expected(twice.size(), 0);
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t j = 0; j < pitch; ++j) {
            int64_t met = 0;
            for (int64_t l = 0; l < count; ++l) {
              bool same = true;
              for (int64_t n = l * bits; n < (l + 1) * bits; ++n)
                same &= (of_keys[n * pitch + j] > of_centres[row * hashes + n]) ==
                        (of_queries[(h * rows + row) * hashes + n] != 0);
              met += same ? 1 : 0;
            }
            const size_t word = static_cast<size_t>((h * rows + row) * words + j / kHashPanel);
            const uint32_t bit = met >= 2 ? uint32_t{1} << (j % kHashPanel) : 0;
            all[word] |= bit;
            if (j < ends[row]) expected[word] |= bit;
          }
        }
      }
      run(pairs);
      EXPECT_EQ(twice, expected) << bits << " " << heads;
      for (const SamplingTable* table : kernels_of_this_machine<SamplingTable>()) {
        twice.assign(twice.size(), 9);
        for (int64_t first = 0; first < rows; first += kAskedRows) {
          for (int64_t begin = 0; begin < pitch; begin += kAskedKeys)
            table->collisions(pairs, {.first_row = first,
                                      .rows = std::min(kAskedRows, rows - first),
                                      .begin = begin,
                                      .words = std::min(kAskedKeys, pitch - begin) / kHashPanel});
        }
        EXPECT_EQ(twice, all) << bits << " " << heads;
        table->collisions(pairs, {.first_row = 3, .rows = 2, .begin = 32, .words = 1});
        EXPECT_EQ(twice, all) << bits << " " << heads;
      }
    }
  }
}

/// Tables over keys whose hashes are given, [keys][tables].
class MadeTables {
 public:
  MadeTables(const HashRule& rule, const std::vector<int32_t>& of_keys, int64_t keys)
      : fill_(rule, keys, of_keys.data()),
        buckets_(static_cast<size_t>(fill_.bucket_bytes())),
        more_(static_cast<size_t>(fill_.more_bytes())) {
    fill_.write(buckets_.data(), more_.data());
  }
  const BucketFill& fill() const { return fill_; }
  HashTable view(int64_t begin, int64_t keys) const {
    return {.begin = begin,
            .end = begin + keys,
            .layout = fill_.layout(),
            .buckets = buckets_.data(),
            .more = more_.data(),
            .more_begin = fill_.more_begin().data()};
  }

 private:
  BucketFill fill_;
  std::vector<std::byte> buckets_, more_;
};

// Even and uneven hashes, of which a bucket holds few or many times what fits; entries of 2, 4 and
// 8 bytes, buckets of one line and of several.
TEST(FindTwice, GivesKeysThatTwoTablesOrMoreReturnOnce) {
  const struct {
    int64_t bits, keys, tables, different;  // hashes that occur
    int64_t entry_bytes;
  } cases[] = {{3, 300, 2, 8, 2},      {3, 300, 40, 8, 2},   {3, 300, 600, 8, 2},
               {10, 300, 255, 1, 2},   {10, 300, 256, 1, 2}, {2, 3000, 257, 4, 2},
               {14, 300, 40, 20, 4},   {10, 300, 40, 1, 2},  {10, 5000, 60, 1000, 2},
               {12, 5000, 60, 30, 2},  {1, 5000, 7, 2, 2},   {30, 5000, 60, 100, 8},
               {20, 70000, 10, 64, 4}, {12, 65536, 3, 2, 2}, {30, 1, 2, 1, 4}};
  for (const auto& [bits, keys, tables, different, entry_bytes] : cases) {
    const HashRule rule{.tables = tables, .bits = bits};
    Rng rng(static_cast<uint64_t>(bits + keys));
    const int64_t step = (int64_t{1} << bits) / different;
    const auto draw = [&] {
      return static_cast<int32_t>(rng.below(static_cast<uint64_t>(different)) *
                                  static_cast<uint64_t>(step));
    };
    std::vector<int32_t> of_keys(static_cast<size_t>(keys * tables)), wanted;
    std::ranges::generate(of_keys, draw);
    for (int64_t l = 0; l < tables; ++l) wanted.push_back(draw());
    std::vector<int32_t> met;
    for (int64_t j = 0; j < keys; ++j) {
      int64_t times = 0;
      for (int64_t l = 0; l < tables; ++l) times += of_keys[j * tables + l] == wanted[l] ? 1 : 0;
      if (times >= 2) met.push_back(static_cast<int32_t>(j) + 4);
    }
    const MadeTables made(rule, of_keys, keys);
    EXPECT_EQ(made.fill().layout().entry_bytes, entry_bytes) << bits << " " << keys;
    std::vector<uint8_t> counts(static_cast<size_t>(made.view(4, keys).counted()), 77);
    std::vector<int32_t> found(static_cast<size_t>(keys + kFoundRoom));
    found.resize(static_cast<size_t>(
        find_twice(rule, made.view(4, keys), wanted.data(), counts.data(), found.data())));
    std::ranges::sort(found);
    EXPECT_EQ(found, met) << bits << " " << keys << " " << tables;
  }
}

TEST(FindTwice, ListsTheKeysCountedTwiceInOrderOnEveryInstructionSet) {
  Rng rng(5);
  for (const int64_t keys : {1, 63, 64, 65, 1000}) {
    for (const uint64_t of : {2, 3, 60}) {  // a half, a third, few
      std::vector<uint8_t> counts;
      std::vector<int32_t> truth;
      for (int64_t n = 0; n < keys; ++n) {
        const uint64_t drawn = rng.below(of);
        // The largest number that 255 tables count, too.
        counts.push_back(static_cast<uint8_t>(drawn != 0 ? drawn % 2 : n % 3 == 0 ? 255 : 2));
        if (counts.back() >= 2) truth.push_back(static_cast<int32_t>(n) + 7);
      }
      for (const SamplingTable* table : kernels_of_this_machine<SamplingTable>()) {
        std::vector<int32_t> found(static_cast<size_t>(keys + kFoundRoom));
        found.resize(
            static_cast<size_t>(table->counted_twice(counts.data(), keys, 7, found.data())));
        EXPECT_EQ(found, truth) << keys << " " << of;
      }
    }
  }
}

// The memory of buckets follows the number of keys, however long hashes are.
TEST(BucketLayout, TakesALineForSixteenKeysOrSo) {
  for (const int64_t bits : {10, 16, 30}) {
    for (const int64_t keys : {1, 50, 1000, 16384, 100000}) {
      const BucketLayout layout({.tables = 1, .bits = bits}, keys);
      EXPECT_EQ(layout.bytes % 64, 0);
      EXPECT_GE(layout.full() * 3, keys >> layout.bits);
      EXPECT_LE(layout.buckets() * layout.bytes, 64 + keys * 8 * layout.entry_bytes / 2)
          << bits << " " << keys;
      EXPECT_LE(layout.key_bits + layout.shift, 8 * layout.entry_bytes);
    }
  }
}

TEST(SampledDecode, ReadsWhatTheTablesAndTheRuleSayOnAnyNumberOfThreads) {
  const int64_t keys = 3000, d = 16, e = 24, heads = 6, kv_heads = 2, begin = 3, end = 2900;
  HashRule rule{.tables = 20, .bits = 6, .head_dim = d};
  const std::vector<float> directions = normal_floats(rule.panels() * d * kHashPanel, 3),
                           curve = cubic_curve();
  rule.directions = directions.data();
  rule.log_weights = curve.data();
  const std::vector<float> q = normal_floats(heads * d, 10),
                           k = normal_floats(kv_heads * keys * d, 11),
                           v = normal_floats(kv_heads * keys * e, 12);
  const std::vector<float> centre(d, 0.0f);
  std::vector<std::vector<float>> lengths(kv_heads);
  std::vector<MadeTables> made;
  std::vector<HashTable> views;
  std::vector<int32_t> all(kv_heads * keys * rule.tables), of_queries(heads * rule.tables);
  run(RowHashes{rule, k.data(), kv_heads * keys, all.data()});
  run(RowHashes{rule, q.data(), heads, of_queries.data()});
  for (int64_t g = 0; g < kv_heads; ++g) {
    std::vector<int32_t> of_keys;
    const auto row = [&](int64_t j) { return all.begin() + (g * keys + j) * rule.tables; };
    of_keys.assign(row(begin), row(end));
    made.emplace_back(rule, of_keys, end - begin);
    for (int64_t j = 0; j < keys; ++j) {
      double square = 0.0;
      for (int64_t c = 0; c < d; ++c) square += std::pow(k[(g * keys + j) * d + c], 2.0);
      lengths[g].push_back(static_cast<float>(std::sqrt(square)));
    }
  }
  for (int64_t g = 0; g < kv_heads; ++g) {
    views.push_back(made[g].view(begin, end - begin));
    views.back().centre = centre.data();
    views.back().lengths = lengths[g].data();
  }
  std::vector<float> out(heads * e), lse(heads);
  std::vector<int64_t> read(heads);
  const auto decode = [&] {
    run(SampledDecode<float>{.sizes = {.batch = 1,
                                       .heads = heads,
                                       .kv_heads = kv_heads,
                                       .queries = 1,
                                       .keys = keys,
                                       .head_dim = d,
                                       .value_dim = e},
                             .q = {.data = q.data(), .head = d},
                             .k = {.data = k.data(), .head = keys * d, .row = d},
                             .v = {.data = v.data(), .head = keys * e, .row = e},
                             .rule = rule,
                             .tables = views.data(),
                             .scale = 0.25f,
                             .out = {.data = out.data(), .head = e},
                             .lse = lse.data(),
                             .read = read.data()});
  };
  decode();
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t g = h / (heads / kv_heads);
    std::vector<double> sums(e);
    double total = 0.0, length = 0.0;
    int64_t count = 0;
    for (int64_t c = 0; c < d; ++c) length += std::pow(q[h * d + c], 2.0);
    for (int64_t j = 0; j < keys; ++j) {
      const bool sampled = j >= begin && j < end;
      int64_t met = 0;
      for (int64_t l = 0; l < rule.tables; ++l)
        met += all[(g * keys + j) * rule.tables + l] == of_queries[h * rule.tables + l] ? 1 : 0;
      if (sampled && met < 2) continue;
      ++count;
      double product = 0.0;
      for (int64_t c = 0; c < d; ++c) product += double(q[h * d + c]) * k[(g * keys + j) * d + c];
      double logit = 0.25 * product;
      const double cosine = product / std::sqrt(length) / lengths[g][j];
      if (sampled) logit += cubic(std::sqrt(std::sqrt(1.0 - std::abs(cosine))), cosine < 0.0);
      total += std::exp(logit);
      for (int64_t c = 0; c < e; ++c) sums[c] += std::exp(logit) * v[(g * keys + j) * e + c];
    }
    EXPECT_EQ(read[h], count);
    EXPECT_NEAR(lse[h], std::log(total), 2e-5);
    for (int64_t c = 0; c < e; ++c) EXPECT_NEAR(out[h * e + c], sums[c] / total, 2e-5);
  }
  const std::vector<float> first = out;
  const int threads = omp_get_max_threads();
  omp_set_num_threads(threads == 1 ? 3 : 1);
  decode();
  omp_set_num_threads(threads);
  EXPECT_EQ(out, first);
}

}  // namespace
}  // namespace fovea::kernels::sampling_test
