// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/config/range.h"

#include <fmt/format.h>

#include <cmath>

namespace fovea {
namespace {

constexpr double kExactIntegers = 9007199254740992;  // 2^53

bool power_of_two(double value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5;
}

}  // namespace

bool Range::stated() const { return std::isfinite(least) && std::isfinite(most); }

bool Range::contains(double value) const {
  return value >= least && (end == End::open ? value < most : value <= most);
}

bool Range::contains(int64_t value) const {
  if (!stated()) return true;
  const auto low = static_cast<int64_t>(least), high = static_cast<int64_t>(most);
  return value >= low && (end == End::open ? value < high : value <= high);
}

std::string Range::text() const {
  return fmt::format("{}{} to {}{}", least == ranges::kPositive.least ? "positive, " : "",
                     plain_number(least), end == End::open ? "below " : "", plain_number(most));
}

std::string plain_number(double value) {
  const bool whole = std::floor(value) == value && std::abs(value) < kExactIntegers;
  if (whole && (std::abs(value) < 1e7 || (value < 1e10 && power_of_two(value))))
    return fmt::format("{:.0f}", value);
  std::string text = fmt::format("{:g}", value);
  if (const size_t plus = text.find("e+"); plus != std::string::npos) text.erase(plus + 1, 1);
  if (const size_t zero = text.find("e0"); zero != std::string::npos) text.erase(zero + 1, 1);
  return text;
}

}  // namespace fovea
