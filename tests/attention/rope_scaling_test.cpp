// Rules that stretch rotary positions (spec 6.2), each against its formula written out.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/positions/rope_scaling.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/expect_error.h"

namespace fovea::rope_scaling_test {
namespace {

using Kind = RopeScaling::Kind;
constexpr double kTheta = 1e4;
constexpr int64_t kWidth = 128;

double plain(int64_t t, double theta = kTheta) {
  return std::pow(theta, -2.0 * static_cast<double>(t) / kWidth);
}

std::vector<double> values(const RopeScaling& s, int64_t n = 4096) {
  return rope_frequencies(s, kTheta, kWidth, n).values;
}

TEST(RopeScaling, LeavesFrequenciesAloneWithoutARule) {
  const std::vector<double> f = values({});
  ASSERT_EQ(f.size(), 64U);
  for (int64_t t = 0; t < 64; ++t) EXPECT_DOUBLE_EQ(f[t], plain(t));
}

TEST(RopeScaling, LinearDividesAllFrequencies) {
  const std::vector<double> f = values({.kind = Kind::linear, .factor = 4.0});
  for (int64_t t = 0; t < 64; ++t) EXPECT_NEAR(f[t] / (plain(t) / 4.0), 1.0, 1e-13);
}

TEST(RopeScaling, NtkKeepsTheFastestAndDividesTheSlowest) {
  const std::vector<double> f = values({.kind = Kind::ntk, .factor = 4.0});
  EXPECT_EQ(f[0], 1.0);
  EXPECT_NEAR(f[63] / (plain(63) / 4.0), 1.0, 1e-12);
  EXPECT_NEAR(f[10], plain(10, kTheta * std::pow(4.0, 128.0 / 126.0)), 1e-14);
}

TEST(RopeScaling, DynamicRulesActPastTheOriginalContextOnly) {
  for (const Kind kind :
       {Kind::dynamic_ntk, Kind::dynamic_ntk_yarn, Kind::dynamic_linear, Kind::dynamic_yarn}) {
    const RopeScaling s{.kind = kind, .factor = 2.0, .original_context = 4096};
    EXPECT_TRUE(s.dynamic());
    EXPECT_EQ(values(s, 4096), values({})) << enum_name(kind);
    EXPECT_EQ(rope_frequencies(s, kTheta, kWidth, 4096).length, 1.0);
    EXPECT_LT(values(s, 8192)[63], plain(63)) << enum_name(kind);
  }
  // Hugging Face: a n/L - (a - 1) = 3 for a = 2 and n = 2L; YaRN's paper: n/L = 2.
  EXPECT_NEAR(values({.kind = Kind::dynamic_ntk, .factor = 2.0, .original_context = 4096}, 8192)[9],
              plain(9, kTheta * std::pow(3.0, 128.0 / 126.0)), 1e-14);
  EXPECT_NEAR(
      values({.kind = Kind::dynamic_ntk_yarn, .factor = 2.0, .original_context = 4096}, 8192)[9],
      plain(9, kTheta * std::pow(2.0, 128.0 / 126.0)), 1e-14);
}

// Golden of 6.2: theta 1e4, d = 128, L = 4096 gives the ramp from 20 to 46.
TEST(RopeScaling, YarnKeepsFastComponentsAndStretchesSlowOnes) {
  const RopeScaling s{.kind = Kind::yarn, .factor = 16.0, .original_context = 4096};
  const RopeFrequencies f = rope_frequencies(s, kTheta, kWidth, 1);
  for (int64_t t = 0; t <= 20; ++t) EXPECT_DOUBLE_EQ(f.values[t], plain(t)) << t;
  for (int64_t t = 46; t < 64; ++t) EXPECT_NEAR(f.values[t] / (plain(t) / 16.0), 1.0, 1e-13) << t;
  const double ramp = (33.0 - 20.0) / 26.0;
  EXPECT_NEAR(f.values[33], plain(33) * (1.0 - ramp) + plain(33) / 16.0 * ramp, 1e-15);
  EXPECT_LT(f.values[21], plain(21));
  EXPECT_GT(f.values[45], plain(45) / 16.0);
  EXPECT_NEAR(f.length, 0.1 * std::log(16.0) + 1.0, 1e-15);
  RopeScaling given = s;
  given.attention_factor = 1.5;
  EXPECT_EQ(rope_frequencies(given, kTheta, kWidth, 1).length, 1.5);
  given.truncate = false;
  EXPECT_NE(values(given), values(s));
}

TEST(RopeScaling, Llama3StretchesByWavelength) {
  const RopeScaling s{.kind = Kind::llama3,
                      .factor = 8.0,
                      .original_context = 8192,
                      .low_frequency = 1.0,
                      .high_frequency = 4.0};
  const std::vector<double> f = rope_frequencies(s, 5e5, kWidth, 1).values;
  int64_t kept = 0, between = 0, stretched = 0;
  for (int64_t t = 0; t < 64; ++t) {
    const double base = plain(t, 5e5), wavelength = 2.0 * M_PI / base;
    double expected = base;
    if (wavelength > 8192.0) {
      expected = base / 8.0;
      ++stretched;
    } else if (wavelength >= 2048.0) {
      const double m = (8192.0 / wavelength - 1.0) / 3.0;
      expected = (1.0 - m) * base / 8.0 + m * base;
      ++between;
    } else {
      ++kept;
    }
    EXPECT_NEAR(f[t] / expected, 1.0, 1e-12) << t;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(between, 0);
  EXPECT_GT(stretched, 0);
}

TEST(RopeScaling, RefusesWhatMakesNoSense) {
  EXPECT_ERROR(ConfigError, (RopeScaling{.kind = Kind::linear, .factor = 0.5}.check()), "factor",
               "0.5");
  EXPECT_ERROR(ConfigError, (RopeScaling{.kind = Kind::llama3, .factor = 8}.check()), "llama3",
               "original_context");
  EXPECT_ERROR(
      ConfigError,
      (RopeScaling{.kind = Kind::yarn, .factor = 8, .original_context = 9, .beta_fast = 1}.check()),
      "beta_fast");
  EXPECT_ERROR(
      ConfigError,
      (RopeScaling{.kind = Kind::llama3, .factor = 8, .original_context = 9, .high_frequency = 0.5}
           .check()),
      "high_frequency");
}

}  // namespace
}  // namespace fovea::rope_scaling_test
