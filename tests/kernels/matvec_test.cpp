// Products of a few rows with matrices in every format (fovea/kernels/cpu/products/matvec.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/products/matvec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/kernels_of_this_machine.h"

namespace fovea::kernels::matvec_test {
namespace {

using testing::kernels_of_this_machine;

std::vector<float> normal(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> x(static_cast<size_t>(count));
  std::ranges::generate(x, [&] { return draw(random); });
  return x;
}

constexpr WeightFormat kPacked[] = {WeightFormat::q8_0, WeightFormat::q4_0, WeightFormat::q4_1};

/// A matrix in a packed format, and what it holds in float32.
struct Packed {
  std::vector<std::byte> rows;
  std::vector<float> weights;
  Packed(WeightFormat format, const std::vector<float>& w, int64_t outputs, int64_t inputs)
      : rows(static_cast<size_t>(outputs * row_bytes(format, inputs))), weights(w.size()) {
    const auto bytes = static_cast<size_t>(row_bytes(format, inputs)),
               n = static_cast<size_t>(inputs);
    for (size_t o = 0; o < static_cast<size_t>(outputs); ++o) {
      pack_row(format, std::span(w).subspan(o * n, n), std::span(rows).subspan(o * bytes, bytes));
      unpack_row(format, std::span(rows).subspan(o * bytes, bytes),
                 std::span(weights).subspan(o * n, n));
    }
  }
};

std::vector<float> product(const MatVecTable& table, const std::vector<float>& x, int64_t rows,
                           WeightRows w, int64_t outputs, int64_t inputs,
                           Activations activations = Activations::exact) {
  std::vector<float> y(static_cast<size_t>(rows * outputs), -7.0f);
  const MatVec p{.x = x.data(),
                 .x_stride = inputs,
                 .w = w,
                 .y = y.data(),
                 .y_stride = outputs,
                 .rows = rows,
                 .inputs = inputs,
                 .outputs = outputs,
                 .activations = activations};
  // Two stretches, as two threads would take them.
  table.product(p, 0, outputs / 3);
  table.product(p, outputs / 3, outputs);
  return y;
}

TEST(MatVec, PackedWeightsGiveTheBitsOfTheSameWeightsInFloat32) {
  for (const auto& [outputs, inputs] :
       {std::pair<int64_t, int64_t>{7, 32}, {11, 512}, {30, 576}, {5, 1536 + 32}}) {
    const std::vector<float> w = normal(outputs * inputs, 3), x = normal(16 * inputs, 4);
    for (const WeightFormat format : kPacked) {
      const Packed packed(format, w, outputs, inputs);
      for (const MatVecTable* table : kernels_of_this_machine<MatVecTable>()) {
        for (const int64_t rows : {1, 2, 5, 16}) {
          const auto y = product(*table, x, rows, {packed.rows.data(), format}, outputs, inputs);
          const auto truth = product(*table, x, rows, {packed.weights.data()}, outputs, inputs);
          ASSERT_EQ(y, truth) << static_cast<int>(format) << ": " << rows << " rows, " << outputs
                              << " x " << inputs;
        }
      }
    }
  }
}

TEST(MatVec, UnpackingGivesTheBitsOfUnpackRow) {
  for (const auto& [outputs, inputs] :
       {std::pair<int64_t, int64_t>{7, 32}, {11, 512}, {300, 576}, {5, 1536 + 32}}) {
    for (const WeightFormat format : kPacked) {
      const Packed packed(format, normal(outputs * inputs, 5), outputs, inputs);
      const WeightRows rows{packed.rows.data(), format};
      const MatVec p{.w = rows, .inputs = inputs, .outputs = outputs};
      std::vector<float> y(packed.weights.size());
      for (const MatVecTable* table : kernels_of_this_machine<MatVecTable>()) {
        std::ranges::fill(y, -7.0f);
        table->unpack(p, 0, outputs / 3, y.data());
        table->unpack(p, outputs / 3, outputs, y.data() + outputs / 3 * inputs);
        ASSERT_EQ(y, packed.weights) << static_cast<int>(format);
      }
      std::ranges::fill(y, -7.0f);
      run(Unpacking{.w = rows, .y = y.data(), .inputs = inputs, .outputs = outputs});
      ASSERT_EQ(y, packed.weights) << static_cast<int>(format);
    }
  }
}

// Sizes with and without a rest behind the last whole 32 inputs, and smaller than that.
TEST(MatVec, ARowAmongOthersHasTheBitsOfTheRowAlone) {
  for (const auto& [outputs, inputs] :
       {std::pair<int64_t, int64_t>{7, 20}, {10, 47}, {12, 608}, {9, 1000}}) {
    const std::vector<float> w = normal(outputs * inputs, 8), x = normal(16 * inputs, 9);
    std::vector<BFloat16> halves(w.size());
    for (size_t i = 0; i < w.size(); ++i) from_float(w[i], halves[i]);
    for (const WeightRows weights :
         {WeightRows{w.data()}, {halves.data(), WeightFormat::bfloat16}}) {
      for (const MatVecTable* table : kernels_of_this_machine<MatVecTable>()) {
        std::vector<float> alone;
        for (int64_t r = 0; r < 16; ++r) {
          const std::vector<float> row(x.begin() + r * inputs, x.begin() + (r + 1) * inputs);
          std::ranges::copy(product(*table, row, 1, weights, outputs, inputs),
                            std::back_inserter(alone));
        }
        for (int64_t rows = 2; rows <= 16; ++rows) {
          const std::vector<float> truth(alone.begin(), alone.begin() + rows * outputs);
          ASSERT_EQ(product(*table, x, rows, weights, outputs, inputs), truth)
              << static_cast<int>(weights.format) << ": " << rows << " rows, " << outputs << " x "
              << inputs;
        }
      }
    }
  }
}

TEST(MatVec, ProductsAreThoseOfFloat64) {
  const int64_t outputs = 33, inputs = 608, rows = 3;
  const std::vector<float> w = normal(outputs * inputs, 5), x = normal(rows * inputs, 6);
  for (const WeightFormat format : kPacked) {
    const Packed packed(format, w, outputs, inputs);
    const auto y = product(mat_vec_table(), x, rows, {packed.rows.data(), format}, outputs, inputs);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < outputs; ++o) {
        double sum = 0.0, size = 0.0;
        for (int64_t i = 0; i < inputs; ++i) {
          const double term = static_cast<double>(x[static_cast<size_t>(r * inputs + i)]) *
                              packed.weights[static_cast<size_t>(o * inputs + i)];
          sum += term;
          size += std::abs(term);
        }
        EXPECT_NEAR(y[static_cast<size_t>(r * outputs + o)], sum, 3e-7 * size);
      }
    }
  }
}

/// Activations as products read them that round each block of 32.
std::vector<double> rounded(std::span<const float> x, Activations activations) {
  std::vector<double> y(x.size());
  for (size_t b = 0; b < x.size(); b += 32) {
    float largest = 0.0f;
    for (const float value : x.subspan(b, 32)) largest = std::max(largest, std::abs(value));
    if (largest < (activations == Activations::int8 ? 1e-35f : 0x1p-112f)) continue;
    float step = largest / 127.0f, inverse = 127.0f / largest;
    if (activations == Activations::int16) {
      int exponent = 0;
      static_cast<void>(std::frexp(largest, &exponent));  // largest < 2^exponent
      step = std::ldexp(1.0f, exponent - 15);
      inverse = 1.0f / step;
    }
    for (size_t i = b; i < b + 32; ++i) {
      const float whole = std::nearbyint(x[i] * inverse);
      y[i] = static_cast<double>(step) * std::clamp(whole, -32767.0f, 32767.0f);
    }
  }
  return y;
}

/// Rows of normal numbers among blocks of zeros, of subnormal and huge numbers, and of halves of
/// the step, which are ties.
std::vector<float> difficult(int64_t rows, int64_t inputs) {
  std::vector<float> x = normal(rows * inputs, 11);
  for (size_t b = 0; b < x.size() / 32; ++b) {
    for (size_t i = 32 * b; i < 32 * b + 32; ++i) {
      if (b % 7 == 2) x[i] = 0.0f;
      if (b % 7 == 3) x[i] *= 1e-40f;
      if (b % 7 == 4) x[i] *= 1e25f;
      if (b % 7 == 5) x[i] = i % 32 == 0 ? -127.0f : static_cast<float>(i % 32) - 15.5f;
    }
  }
  return x;
}

class MatVecRounded : public ::testing::TestWithParam<Activations> {};
INSTANTIATE_TEST_SUITE_P(All, MatVecRounded,
                         ::testing::Values(Activations::int16, Activations::int8),
                         [](const auto& test) {
                           return test.param == Activations::int8 ? "int8" : "int16";
                         });

TEST_P(MatVecRounded, ProductsAreThoseOfFloat64WithTheRoundedActivations) {
  for (const auto& [outputs, inputs] :
       {std::pair<int64_t, int64_t>{1, 32}, {7, 96}, {16, 160}, {37, 576}, {50, 1536 + 32}}) {
    const std::vector<float> w = normal(outputs * inputs, 12), x = difficult(16, inputs);
    const std::vector<double> read = rounded(x, GetParam());
    for (const WeightFormat format : kPacked) {
      const Packed packed(format, w, outputs, inputs);
      for (const MatVecTable* table : kernels_of_this_machine<MatVecTable>()) {
        for (int64_t rows = 1; rows <= 16; ++rows) {
          const auto y =
              product(*table, x, rows, {packed.rows.data(), format}, outputs, inputs, GetParam());
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t o = 0; o < outputs; ++o) {
              double sum = 0.0, size = 0.0;
              for (int64_t i = 0; i < inputs; ++i) {
                const double value = read[static_cast<size_t>(r * inputs + i)];
                sum += value * packed.weights[static_cast<size_t>(o * inputs + i)];
                size += std::abs(value) * 4.0;  // weights are hardly larger
              }
              ASSERT_NEAR(y[static_cast<size_t>(r * outputs + o)], sum, 3e-7 * size)
                  << static_cast<int>(format) << ": row " << r << " of " << rows << ", output " << o
                  << " of " << outputs << " x " << inputs;
            }
          }
        }
      }
    }
  }
}

TEST_P(MatVecRounded, ARowAmongOthersHasTheBitsOfTheRowAlone) {
  const int64_t outputs = 39, inputs = 608;
  const std::vector<float> w = normal(outputs * inputs, 13), x = difficult(16, inputs);
  for (const WeightFormat format : kPacked) {
    const Packed packed(format, w, outputs, inputs);
    const WeightRows weights{packed.rows.data(), format};
    for (const MatVecTable* table : kernels_of_this_machine<MatVecTable>()) {
      std::vector<float> alone;
      for (int64_t r = 0; r < 16; ++r) {
        const std::vector<float> row(x.begin() + r * inputs, x.begin() + (r + 1) * inputs);
        std::ranges::copy(product(*table, row, 1, weights, outputs, inputs, GetParam()),
                          std::back_inserter(alone));
      }
      for (int64_t rows = 2; rows <= 16; ++rows) {
        const std::vector<float> truth(alone.begin(), alone.begin() + rows * outputs);
        ASSERT_EQ(product(*table, x, rows, weights, outputs, inputs, GetParam()), truth)
            << static_cast<int>(format) << ": " << rows << " rows";
      }
    }
  }
}

TEST_P(MatVecRounded, ABlockWithInfinityOrNanMakesItsRowNan) {
  const int64_t outputs = 21, inputs = 160, rows = 3;
  const std::vector<float> w = normal(outputs * inputs, 14), clean = normal(rows * inputs, 15);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = clean;
    x[static_cast<size_t>(inputs + 70)] = bad;
    for (const WeightFormat format : kPacked) {
      const Packed packed(format, w, outputs, inputs);
      for (const MatVecTable* table : kernels_of_this_machine<MatVecTable>()) {
        const auto of = [&](const std::vector<float>& given) {
          return product(*table, given, rows, {packed.rows.data(), format}, outputs, inputs,
                         GetParam());
        };
        const std::vector<float> y = of(x), truth = of(clean);
        for (size_t i = 0; i < y.size(); ++i) {
          if (static_cast<int64_t>(i) / outputs == 1) {
            EXPECT_TRUE(std::isnan(y[i])) << i;
          } else {
            EXPECT_EQ(y[i], truth[i]) << i;
          }
        }
      }
    }
  }
}

TEST_P(MatVecRounded, ProductsSideBySideHaveTheBitsOfEachAlone) {
  const int64_t outputs = 24, inputs = 96, rows = 5;
  const std::vector<float> w = normal(outputs * inputs, 16), x = normal(2 * rows * inputs, 17);
  const Packed eight(WeightFormat::q8_0, w, outputs, inputs),
      four(WeightFormat::q4_1, w, outputs, inputs);
  std::vector<MatVec> products;
  std::vector<std::vector<float>> results(5, std::vector<float>(outputs * rows));
  const auto add = [&](const float* from, WeightRows of) {
    products.push_back({.x = from,
                        .x_stride = inputs,
                        .w = of,
                        .y = results[products.size()].data(),
                        .y_stride = outputs,
                        .rows = rows,
                        .inputs = inputs,
                        .outputs = outputs,
                        .activations = GetParam()});
  };
  const WeightRows of_eight{eight.rows.data(), WeightFormat::q8_0};
  add(x.data(), of_eight);
  add(x.data(), of_eight);  // of the same rounded rows
  add(x.data(), {four.rows.data(), WeightFormat::q4_1});
  add(x.data() + rows * inputs, of_eight);
  add(x.data(), {w.data()});
  for (const int64_t slices : {1, 2, 7}) {
    for (std::vector<float>& y : results) std::ranges::fill(y, -7.0f);
    for (int64_t n = 0; n < slices; ++n) run_slice(products, n, slices);
    const std::vector<std::vector<float>> together = results;
    for (const MatVec& one : products) run_slice({&one, 1}, 0, 1);
    EXPECT_EQ(together, results) << slices;
  }
}

/// Numbers of bfloat16 that are not small beside the largest of their block.
TEST(MatVecInt16, NumbersOfBfloat16AreReadAsTheyAre) {
  const int64_t outputs = 19, inputs = 480, rows = 5;
  std::vector<float> x = normal(rows * inputs, 18);
  for (float& value : x) {
    value = std::copysign(std::clamp(std::abs(value), 0.05f, 3.9f), value);
    BFloat16 half;
    from_float(value, half);
    value = to_float(half);
  }
  const std::vector<double> read = rounded(x, Activations::int16);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(read[i], x[i]) << i;
  const std::vector<float> w = normal(outputs * inputs, 19);
  for (const WeightFormat format : kPacked) {
    const Packed packed(format, w, outputs, inputs);
    for (const MatVecTable* table : kernels_of_this_machine<MatVecTable>()) {
      const WeightRows weights{packed.rows.data(), format};
      const auto y = product(*table, x, rows, weights, outputs, inputs, Activations::int16),
                 exact = product(*table, x, rows, weights, outputs, inputs);
      for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], exact[i], 1e-4f) << i;
    }
  }
}

TEST(MatVecInt8, RoundingIsTheSameOnEveryInstructionSet) {
  std::vector<float> x = difficult(4, 320);
  const auto tables = kernels_of_this_machine<MatVecTable>();
  const std::vector<double> truth = rounded(x, Activations::int8);
  for (const MatVecTable* table : tables) {
    std::vector<float> y(x.size());
    table->round_to_int8(x.data(), std::ssize(x), y.data());
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], static_cast<float>(truth[i])) << i;
  }
  x[40] = std::numeric_limits<float>::infinity();
  for (const MatVecTable* table : tables) {
    std::vector<float> y(x.size());
    table->round_to_int8(x.data(), std::ssize(x), y.data());
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 32 == 1) << i;
  }
}

// Half a step of the block's scale, and half a bit of the scale itself.
TEST(WeightFormats, PackingLosesHalfAStepAtMost) {
  const std::vector<float> w = normal(32 * 40, 7);
  for (const WeightFormat format : kPacked) {
    const Packed packed(format, w, 1, std::ssize(w));
    for (size_t b = 0; b < w.size(); b += 32) {
      const auto block = std::span(w).subspan(b, 32);
      const auto [low, high] = std::ranges::minmax(block);
      const float largest = std::max(-low, high);
      // Of 16 levels of q4_0 one lies behind zero on the side that has no larger number: 8 and 7.
      const float step = format == WeightFormat::q8_0   ? largest / 127
                         : format == WeightFormat::q4_0 ? 2 * largest / 8
                                                        : (high - low) / 15;
      for (size_t i = 0; i < 32; ++i)
        EXPECT_NEAR(packed.weights[b + i], block[i], 0.5f * step + 1e-3f * largest);
    }
  }
}

TEST(WeightFormats, EdgesOfBlocks) {
  std::vector<float> zeros(32), constant(32, 0.75f), tiny(32, 1e-40f);
  for (const WeightFormat format : kPacked) {
    EXPECT_EQ(Packed(format, zeros, 1, 32).weights, zeros);
    EXPECT_EQ(Packed(format, tiny, 1, 32).weights, zeros);
    for (const float w : Packed(format, constant, 1, 32).weights) EXPECT_NEAR(w, 0.75f, 5e-4f);
  }
}

TEST(WeightFormats, BlocksOfGgmlHoldTheSameNumbers) {
  const std::vector<float> w = normal(96, 8);
  for (const WeightFormat format : kPacked) {
    std::vector<std::byte> blocks(static_cast<size_t>(row_bytes(format, 96)));
    std::byte* at = blocks.data();
    for (int b = 0; b < 3; ++b, at += block_bytes(format)) {
      const int64_t scales = 2 * block_scales(format);
      const BlockScales s = quantise_block(format, w.data() + 32 * b, at + scales);
      std::memcpy(at, &s.d, 2);
      if (scales == 4) std::memcpy(at + 2, &s.m, 2);
    }
    std::vector<std::byte> row(blocks.size());
    pack_blocks(format, blocks, row);
    EXPECT_EQ(row, Packed(format, w, 1, 96).rows);
  }
}

TEST(WeightFormats, SizesThatAreNoWholeBlocksAreRefused) {
  std::vector<float> w(33);
  std::vector<std::byte> row(34);
  EXPECT_ERROR(ShapeError, pack_row(WeightFormat::q8_0, w, row), "blocks of 32", "33");
  EXPECT_ERROR(ShapeError, unpack_row(WeightFormat::q4_1, row, std::span(w).first(32)), "34 bytes");
  EXPECT_ERROR(ShapeError, pack_row(WeightFormat::bfloat16, w, row), "blocks");
}

}  // namespace
}  // namespace fovea::kernels::matvec_test
