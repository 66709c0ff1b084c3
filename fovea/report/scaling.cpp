// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "fovea/report/format.h"
#include "fovea/report/spread.h"
#include "fovea/text/result_json.h"

namespace fovea {
namespace {

constexpr std::string_view kAxisNames[] = {"parameters", "tokens"};
constexpr std::string_view kBoundNames[] = {"none", "at most", "more than"};
constexpr size_t kLeastCurvePoints = 3;  // of a validation curve

/// One finished run as a point.
struct Point {
  size_t variant;
  int64_t parameters, tokens, seed;
  double bits;
};

/// The finished points of each family, families in order of appearance with the reference's first.
std::vector<std::pair<std::string, std::vector<Point>>> families_of(const CompareResult& result) {
  std::vector<std::pair<std::string, std::vector<Point>>> families;
  for (size_t v = 0; v < result.variants.size(); ++v) {
    const CompareVariant& variant = result.variants[v];
    if (variant.family.empty()) continue;
    auto family = std::ranges::find(families, variant.family,
                                    &std::pair<std::string, std::vector<Point>>::first);
    if (family == families.end()) family = families.insert(family, {variant.family, {}});
    for (const CompareRun& run : variant.runs) {
      if (!run.finished()) continue;
      family->second.push_back(
          {v, variant.parameters, run.tokens, run.seed, run.validation_bits_per_byte});
    }
  }
  std::erase_if(families, [](const auto& family) { return family.second.empty(); });
  const CompareVariant* reference = result.reference_variant();
  if (reference != nullptr) {
    std::stable_partition(families.begin(), families.end(),
                          [&](const auto& family) { return family.first == reference->family; });
  }
  return families;
}

/// The points of a family along `axis`, where the other quantity is at its largest.
ScalingCurve curve_along(ScalingAxis axis, const std::string& family,
                         const std::vector<Point>& points) {
  const bool sizes = axis == ScalingAxis::parameters;
  int64_t other = 0;
  for (const Point& p : points) other = std::max(other, sizes ? p.tokens : p.parameters);
  std::map<int64_t, std::map<int64_t, double>> by_seed;
  for (const Point& p : points) {
    if ((sizes ? p.tokens : p.parameters) != other || p.bits <= 0) continue;
    by_seed[p.seed].emplace(sizes ? p.parameters : p.tokens, p.bits);
  }
  ScalingCurve curve{.family = family, .variant = points.front().variant, .seeds = {}, .fit = {}};
  for (const auto& [seed, values] : by_seed) {
    ScalingLine line{.seed = seed, .line = {}};
    for (const auto& [x, bits] : values) {
      line.line.x.push_back(static_cast<double>(x));
      line.line.y.push_back(bits);
    }
    curve.seeds.push_back(std::move(line));
  }
  return curve;
}

PowerLaw fit_power_law(const ScalingCurve& curve) {
  std::vector<double> x, y;
  for (const ScalingLine& seed : curve.seeds) {
    for (size_t i = 0; i < seed.line.x.size(); ++i) {
      x.push_back(std::log(seed.line.x[i]));
      y.push_back(std::log(seed.line.y[i]));
    }
  }
  if (std::set(x.begin(), x.end()).size() < 3) return {};
  const auto n = static_cast<double>(x.size());
  const double x_mean = spread_of(x).mean, y_mean = spread_of(y).mean;
  double xx = 0, xy = 0, rest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - x_mean) * (x[i] - x_mean);
    xy += (x[i] - x_mean) * (y[i] - y_mean);
  }
  const double slope = xy / xx, intercept = y_mean - slope * x_mean;
  for (size_t i = 0; i < x.size(); ++i) {
    const double miss = y[i] - intercept - slope * x[i];
    rest += miss * miss;
  }
  return {
      .exponent = -slope, .exponent_error = std::sqrt(rest / (n - 2) / xx), .intercept = intercept};
}

/// Where a line first comes down to `loss`: x, or the nearer end with the side on which it lies.
struct Reached {
  double x;
  IsoLoss::Bound bound = IsoLoss::Bound::none;
};

Reached reach(const Line& line, double loss) {
  if (line.y.front() < loss) return {line.x.front(), IsoLoss::Bound::at_most};
  for (size_t i = 0; i < line.x.size(); ++i) {
    if (line.y[i] > loss) continue;
    if (i == 0 || line.y[i] == loss) return {line.x[i]};
    const double share = std::log(line.y[i - 1] / loss) / std::log(line.y[i - 1] / line.y[i]);
    return {line.x[i - 1] * std::pow(line.x[i] / line.x[i - 1], share)};
  }
  return {line.x.back(), IsoLoss::Bound::more_than};
}

/// The share of `x` that `curve` needs for the loss of `reference` there, over common seeds.
std::optional<IsoLoss> iso_loss_at(double x, const ScalingCurve& curve,
                                   const ScalingCurve& reference) {
  std::vector<double> ratios;
  IsoLoss out{.family = curve.family, .x = x, .ratio = {}};
  double most = 0, least = INFINITY;
  for (const ScalingLine& base : reference.seeds) {
    const auto own = std::ranges::find(curve.seeds, base.seed, &ScalingLine::seed);
    const auto at = std::ranges::find(base.line.x, x);
    if (own == curve.seeds.end() || at == base.line.x.end()) continue;
    const Reached reached =
        reach(own->line, base.line.y[static_cast<size_t>(at - base.line.x.begin())]);
    const double ratio = reached.x / x;
    ratios.push_back(ratio);
    // One seed that never gets there decides over the others: no mean exists then.
    if (reached.bound == IsoLoss::Bound::more_than) {
      out.bound = reached.bound;
      least = std::min(least, ratio);
    } else if (reached.bound == IsoLoss::Bound::at_most && out.bound == IsoLoss::Bound::none) {
      out.bound = reached.bound;
    }
    most = std::max(most, ratio);
  }
  if (ratios.empty()) return std::nullopt;
  out.seeds = static_cast<int64_t>(ratios.size());
  out.ratio = spread_of(ratios);
  if (out.bound == IsoLoss::Bound::none) return out;
  out.ratio.mean = out.bound == IsoLoss::Bound::at_most ? most : least;
  out.ratio.standard_deviation = kNotANumber;
  return out;
}

/// Fits, and the shares of every family but the first; all points of the reference, or its last.
void finish(ScalingStudy& study, bool last_only) {
  for (ScalingCurve& curve : study.curves) curve.fit = fit_power_law(curve);
  const ScalingCurve& reference = study.curves.front();
  std::set<double> places;
  for (const ScalingLine& seed : reference.seeds)
    places.insert(seed.line.x.begin(), seed.line.x.end());
  if (last_only) places = {*places.rbegin()};
  for (size_t c = 1; c < study.curves.size(); ++c) {
    for (const double x : places) {
      if (auto iso = iso_loss_at(x, study.curves[c], reference)) study.iso_loss.push_back(*iso);
    }
  }
}

std::optional<ScalingStudy> study_families(ScalingAxis axis, const CompareResult& result) {
  ScalingStudy study{.axis = axis, .curves = {}, .iso_loss = {}};
  for (const auto& [family, points] : families_of(result)) {
    ScalingCurve curve = curve_along(axis, family, points);
    std::erase_if(curve.seeds, [](const ScalingLine& seed) { return seed.line.x.size() < 2; });
    if (!curve.seeds.empty()) study.curves.push_back(std::move(curve));
  }
  if (study.curves.empty()) return std::nullopt;
  finish(study, false);
  return study;
}

std::optional<ScalingStudy> study_validation_curves(const CompareResult& result) {
  ScalingStudy study{
      .axis = ScalingAxis::tokens, .within_runs = true, .curves = {}, .iso_loss = {}};
  for (size_t v = 0; v < result.variants.size(); ++v) {
    ScalingCurve curve{.family = result.variants[v].name, .variant = v, .seeds = {}, .fit = {}};
    for (const CompareRun& run : result.variants[v].runs) {
      ScalingLine line{.seed = run.seed, .line = {}};
      for (const ValidationPoint& point : run.validation_curve) {
        const auto tokens = static_cast<double>(point.tokens);
        if (!(point.bits_per_byte > 0) || !(tokens > 0)) continue;
        if (!line.line.x.empty() && tokens <= line.line.x.back()) continue;
        line.line.x.push_back(tokens);
        line.line.y.push_back(point.bits_per_byte);
      }
      if (line.line.x.size() >= kLeastCurvePoints) curve.seeds.push_back(std::move(line));
    }
    if (curve.seeds.empty()) continue;
    const bool reference = curve.family == result.reference;
    study.curves.insert(reference ? study.curves.begin() : study.curves.end(), std::move(curve));
  }
  if (study.curves.size() < 2 || study.curves.front().family != result.reference)
    return std::nullopt;
  finish(study, true);
  return study;
}

nlohmann::ordered_json curve_json(const ScalingCurve& curve, const std::string& x_name) {
  nlohmann::ordered_json seeds = nlohmann::ordered_json::array();
  for (const ScalingLine& seed : curve.seeds) {
    seeds.push_back({{"seed", seed.seed}, {x_name, seed.line.x}, {"bits_per_byte", seed.line.y}});
  }
  return {{"family", repair_utf8(curve.family)},
          {"exponent", result_json(curve.fit.exponent)},
          {"exponent_error", result_json(curve.fit.exponent_error)},
          {"intercept", result_json(curve.fit.intercept)},
          {"seeds", seeds}};
}

}  // namespace

std::span<const std::string_view> enum_names(ScalingAxis) { return kAxisNames; }

std::vector<ScalingStudy> scaling_studies(const CompareResult& result) {
  std::vector<ScalingStudy> studies;
  bool tokens_swept = false;
  for (const ScalingAxis axis : {ScalingAxis::parameters, ScalingAxis::tokens}) {
    if (auto study = study_families(axis, result)) {
      tokens_swept |= axis == ScalingAxis::tokens;
      studies.push_back(std::move(*study));
    }
  }
  if (tokens_swept) return studies;
  // In a sweep, the curves of different sizes are no families of one another.
  const bool swept =
      std::ranges::any_of(result.variants, [](const auto& v) { return !v.family.empty(); });
  if (swept) return studies;
  if (auto study = study_validation_curves(result)) studies.push_back(std::move(*study));
  return studies;
}

std::vector<std::string> scaling_sentences(const ScalingStudy& study) {
  std::vector<std::string> out;
  for (size_t c = 1; c < study.curves.size(); ++c) {
    const IsoLoss* last = nullptr;
    for (const IsoLoss& iso : study.iso_loss) {
      if (iso.family == study.curves[c].family) last = &iso;
    }
    if (last == nullptr) continue;
    const std::string share =
        last->bound == IsoLoss::Bound::none
            ? spread_text(last->ratio, 2)
            : fmt::format("{} {:.2f}", kBoundNames[static_cast<size_t>(last->bound)],
                          last->ratio.mean);
    out.push_back(fmt::format("{} reaches the loss of {} with {} of the {} (at {}).", last->family,
                              study.curves.front().family, share,
                              kAxisNames[static_cast<size_t>(study.axis)], count_text(last->x)));
  }
  return out;
}

nlohmann::ordered_json scaling_json(const std::vector<ScalingStudy>& studies) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ScalingStudy& study : studies) {
    const std::string x_name(kAxisNames[static_cast<size_t>(study.axis)]);
    nlohmann::ordered_json curves = nlohmann::ordered_json::array(),
                           ratios = nlohmann::ordered_json::array();
    for (const ScalingCurve& curve : study.curves) curves.push_back(curve_json(curve, x_name));
    for (const IsoLoss& iso : study.iso_loss) {
      ratios.push_back({{"family", repair_utf8(iso.family)},
                        {x_name, iso.x},
                        {"ratio", result_json(iso.ratio.mean)},
                        {"bound", kBoundNames[static_cast<size_t>(iso.bound)]},
                        {"min", result_json(iso.ratio.min)},
                        {"max", result_json(iso.ratio.max)},
                        {"standard_deviation", result_json(iso.ratio.standard_deviation)},
                        {"seeds", iso.seeds}});
    }
    list.push_back({{"axis", x_name},
                    {"within_runs", study.within_runs},
                    {"curves", curves},
                    {"iso_loss_" + x_name + "_ratio", ratios}});
  }
  return list;
}

}  // namespace fovea
