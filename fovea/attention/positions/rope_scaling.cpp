// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/positions/rope_scaling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr std::array<std::string_view, 9> kKinds{
    "none",           "linear", "ntk",          "dynamic_ntk", "dynamic_ntk_yarn",
    "dynamic_linear", "yarn",   "dynamic_yarn", "llama3"};

std::vector<double> powers(double theta, int64_t width) {
  std::vector<double> f(static_cast<size_t>(width / 2));
  for (size_t t = 0; t < f.size(); ++t)
    f[t] = std::pow(theta, -2.0 * static_cast<double>(t) / static_cast<double>(width));
  return f;
}

/// theta stretched so that the slowest frequency is divided by `a`.
double ntk_theta(double theta, double a, int64_t width) {
  const auto d = static_cast<double>(width);
  return width > 2 ? theta * std::pow(a, d / (d - 2.0)) : theta;
}

// From fast (kept) to slow (divided by a) along a ramp between two component indices.
void stretch_by_parts(std::vector<double>& f, const RopeScaling& s, double theta, int64_t width,
                      double a) {
  const auto d = static_cast<double>(width), original = static_cast<double>(s.original_context);
  const auto index = [&](double turns) {
    return d * std::log(original / (2.0 * std::numbers::pi * turns)) / (2.0 * std::log(theta));
  };
  double low = index(s.beta_fast), high = index(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1.0);
  if (low == high) high += 0.001;
  for (size_t t = 0; t < f.size(); ++t) {
    const double ramp = std::clamp((static_cast<double>(t) - low) / (high - low), 0.0, 1.0);
    f[t] = f[t] * (1.0 - ramp) + f[t] / a * ramp;
  }
}

void stretch_by_wavelength(std::vector<double>& f, const RopeScaling& s) {
  const auto original = static_cast<double>(s.original_context);
  for (double& value : f) {
    const double wavelength = 2.0 * std::numbers::pi / value;
    if (wavelength > original / s.low_frequency) {
      value /= s.factor;
    } else if (wavelength >= original / s.high_frequency) {
      const double m =
          (original / wavelength - s.low_frequency) / (s.high_frequency - s.low_frequency);
      value = (1.0 - m) * value / s.factor + m * value;
    }
  }
}

}  // namespace

std::span<const std::string_view> enum_names(RopeScaling::Kind) { return kKinds; }

bool RopeScaling::dynamic() const {
  return kind == Kind::dynamic_ntk || kind == Kind::dynamic_ntk_yarn ||
         kind == Kind::dynamic_linear || kind == Kind::dynamic_yarn;
}

void RopeScaling::describe(FieldVisitor& v) {
  v.choice({"kind", "rule for texts longer than the trained length (spec 6.2)"}, kind);
  v.real({"factor", "how much longer: a of the rule, at least 1", {0, 1e9}}, factor);
  v.integer({"original_context", "L: trained length in tokens, before stretching",
             ranges::kPositionCounts},
            original_context);
  v.real({"beta_fast", "yarn: components with more turns than this in L stay", {0, 1e9}},
         beta_fast);
  v.real({"beta_slow",
          "yarn: components with fewer turns than this in L are divided by the factor",
          {0, 1e9}},
         beta_slow);
  v.real({"attention_factor", "yarn: multiplies cos and sin; 0 = 0.1 ln factor + 1", {0, 1e9}},
         attention_factor);
  v.boolean({"truncate", "yarn: the ramp begins and ends at whole components"}, truncate);
  v.real(
      {"low_frequency", "llama3: wavelengths above L / this are divided by the factor", {0, 1e9}},
      low_frequency);
  v.real({"high_frequency", "llama3: wavelengths below L / this stay", {0, 1e9}}, high_frequency);
}

void RopeScaling::check() const {
  if (kind == Kind::none) return;
  const std::string name(enum_name(kind));
  require<ConfigError>(std::isfinite(factor) && factor >= 1.0, "rope.scaling",
                       "'factor' must be at least 1; got {}", factor);
  const bool needs_length = kind != Kind::linear && kind != Kind::ntk;
  require<ConfigError>(!needs_length || original_context > 0, "rope.scaling",
                       "kind {} needs 'original_context', the trained length in tokens; got {}",
                       name, original_context);
  if (kind == Kind::yarn || kind == Kind::dynamic_yarn) {
    require<ConfigError>(beta_slow > 0.0 && beta_fast > beta_slow, "rope.scaling",
                         "'beta_fast' must be above 'beta_slow' and both above 0; got {} and {}",
                         beta_fast, beta_slow);
    require<ConfigError>(attention_factor >= 0.0, "rope.scaling",
                         "'attention_factor' must be 0 (by rule) or positive; got {}",
                         attention_factor);
  }
  if (kind == Kind::llama3)
    require<ConfigError>(low_frequency > 0.0 && high_frequency > low_frequency, "rope.scaling",
                         "'high_frequency' must be above 'low_frequency' and both above 0; got {} "
                         "and {}",
                         high_frequency, low_frequency);
}

RopeFrequencies rope_frequencies(const RopeScaling& s, double theta, int64_t width, int64_t n) {
  using Kind = RopeScaling::Kind;
  const auto length = static_cast<double>(n), original = static_cast<double>(s.original_context);
  const double excess = original > 0.0 ? std::max(1.0, length / original) : 1.0;
  RopeFrequencies out;
  const auto stretch_all = [&](double a) {
    for (double& f : out.values) f /= a;
  };
  switch (s.kind) {
    case Kind::ntk:
      out.values = powers(ntk_theta(theta, s.factor, width), width);
      return out;
    case Kind::dynamic_ntk:
      out.values =
          powers(ntk_theta(theta, excess > 1.0 ? s.factor * excess - (s.factor - 1.0) : 1.0, width),
                 width);
      return out;
    case Kind::dynamic_ntk_yarn:
      out.values = powers(ntk_theta(theta, excess, width), width);
      return out;
    default:
      out.values = powers(theta, width);
  }
  switch (s.kind) {
    case Kind::linear:
      stretch_all(s.factor);
      break;
    case Kind::dynamic_linear:
      stretch_all(excess);
      break;
    case Kind::yarn:
    case Kind::dynamic_yarn: {
      const double a = s.kind == Kind::yarn ? s.factor : excess;
      if (a > 1.0) stretch_by_parts(out.values, s, theta, width, a);
      out.length = s.attention_factor > 0.0 ? s.attention_factor
                   : a > 1.0                ? 0.1 * std::log(a) + 1.0
                                            : 1.0;
      break;
    }
    case Kind::llama3:
      stretch_by_wavelength(out.values, s);
      break;
    default:
      break;
  }
  return out;
}

}  // namespace fovea
