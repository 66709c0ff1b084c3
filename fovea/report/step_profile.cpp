// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/step_profile.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/report/charts.h"
#include "fovea/report/format.h"
#include "fovea/report/html_parts.h"
#include "fovea/report/table.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Quartiles& q) { return {{"q1", q.q1}, {"median", q.median}, {"q3", q.q3}}; }

double flops_of(const ProfiledOperator& o) { return o.forward_flops + o.backward_flops; }

double total_flops(const StepProfile& profile) {
  double sum = 0;
  for (const ProfiledOperator& o : profile.operators) sum += flops_of(o);
  return sum;
}

/// Step by step.
std::vector<double> seconds_of(const ProfiledOperator& o) {
  std::vector<double> out(o.forward_seconds.size());
  std::ranges::transform(o.forward_seconds, o.backward_seconds, out.begin(), std::plus());
  return out;
}

std::vector<double> time_shares(const StepProfile& profile, const ProfiledOperator& o) {
  std::vector<double> out = seconds_of(o);
  std::ranges::transform(out, profile.seconds, out.begin(), std::divides());
  return out;
}

/// Medians, as the table and the picture show them.
struct Row {
  double forward = 0, backward = 0, time_share = 0, flop_share = 0, flops = 0, flops_a_second = 0;
};

Row row_of(const StepProfile& profile, const ProfiledOperator& o) {
  const double flops = flops_of(o), all = total_flops(profile),
               seconds = quartiles_of(seconds_of(o)).median;
  return {.forward = quartiles_of(o.forward_seconds).median,
          .backward = quartiles_of(o.backward_seconds).median,
          .time_share = quartiles_of(time_shares(profile, o)).median,
          .flop_share = all > 0 ? flops / all : 0.0,
          .flops = flops,
          .flops_a_second = flops > 0 && seconds > 0 ? flops / seconds : kNotANumber};
}

Json row_json(const StepProfile& profile, const ProfiledOperator& o) {
  const Row row = row_of(profile, o);
  Json json{{"name", o.name},
            {"forward_ms", 1e3 * row.forward},
            {"backward_ms", 1e3 * row.backward},
            {"forward_gflop", o.forward_flops / 1e9},
            {"backward_gflop", o.backward_flops / 1e9},
            {"time_share", to_json(quartiles_of(time_shares(profile, o)))},
            {"flop_share", row.flop_share}};
  if (row.flops <= 0) return json;
  json["gflop_per_second"] = row.flops_a_second / 1e9;
  std::vector<double> ratios = time_shares(profile, o);
  for (double& ratio : ratios) ratio /= row.flop_share;
  json["time_over_flop_share"] = to_json(quartiles_of(ratios));
  return json;
}

std::string head_line(const StepProfile& profile) {
  const double seconds = quartiles_of(profile.seconds).median;
  return fmt::format(
      "{}: a step of {} tokens takes {:.1f} ms ({:.0f} tokens/s, {} GFLOP/s); {} "
      "steps after {}",
      profile.run, profile.tokens, 1e3 * seconds, static_cast<double>(profile.tokens) / seconds,
      fixed_text(total_flops(profile) / seconds / 1e9, 1), profile.steps(), profile.warmup);
}

}  // namespace

void StepProfile::add_rest() {
  ProfiledOperator& rest = operators.back();
  for (size_t step = 0; step < seconds.size(); ++step) {
    double known = 0;
    for (const ProfiledOperator& o : operators)
      known += o.forward_seconds[step] + o.backward_seconds[step];
    rest.forward_seconds[step] += std::max(seconds[step] - known, 0.0);
  }
}

Quartiles quartiles_of(std::vector<double> values) {
  if (values.empty()) return {kNotANumber, kNotANumber, kNotANumber};
  std::ranges::sort(values);
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, values.size() - 1);
    return std::lerp(values[below], values[above], place - static_cast<double>(below));
  };
  return {at(0.25), at(0.5), at(0.75)};
}

Json to_json(const StepProfile& profile) {
  Json rows = Json::array();
  for (const ProfiledOperator& o : profile.operators) rows.push_back(row_json(profile, o));
  std::vector<double> ms = profile.seconds;
  for (double& value : ms) value *= 1e3;
  return {{"run", profile.run},
          {"machine", profile.machine},
          {"fovea", profile.code_version},
          {"torch", profile.torch_version},
          {"dtype", profile.dtype},
          {"attention_path", profile.attention_path},
          {"threads", profile.threads},
          {"parameters", profile.parameters},
          {"tokens", profile.tokens},
          {"warmup", profile.warmup},
          {"rounds", profile.steps()},
          {"step_ms", to_json(quartiles_of(ms))},
          {"gflop", total_flops(profile) / 1e9},
          {"results", rows}};
}

std::string profile_table(const StepProfile& profile, int64_t width) {
  TextTable table({{.title = "operator"},
                   {.title = "forward ms", .right = true, .importance = 3},
                   {.title = "backward ms", .right = true, .importance = 3},
                   {.title = "time", .right = true},
                   {.title = "FLOPs", .right = true},
                   {.title = "GFLOP", .right = true, .importance = 2},
                   {.title = "GFLOP/s", .right = true}});
  const auto share = [](double value) { return fmt::format("{:.2f} %", 100 * value); };
  for (const ProfiledOperator& o : profile.operators) {
    const Row row = row_of(profile, o);
    table.add_row({o.name, fixed_text(1e3 * row.forward, 2), fixed_text(1e3 * row.backward, 2),
                   share(row.time_share), share(row.flop_share), fixed_text(row.flops / 1e9, 3),
                   fixed_text(row.flops_a_second / 1e9, 1)});
  }
  table.add_note(head_line(profile) + ".");
  table.add_note(
      "Medians over steps. FLOPs are those of the formulas; the loss and the optimizer have no "
      "backward pass of their own.");
  return table.render(width);
}

GnuplotChart profile_chart(const StepProfile& profile) {
  std::vector<Bar> bars;
  for (const ProfiledOperator& o : profile.operators) {
    const Row row = row_of(profile, o);
    const auto [low, median, high] = quartiles_of(time_shares(profile, o));
    bars.push_back({.name = o.name,
                    .value = median,
                    .low = low,
                    .high = high,
                    .text = fmt::format("{:.1f} % of the time", 100 * median),
                    .color = ChartColor::kSeries + 1});
    bars.push_back({.name = "",
                    .value = row.flop_share,
                    .text = fmt::format("{:.2f} % of the FLOPs", 100 * row.flop_share),
                    .color = ChartColor::kBaseline});
  }
  return bar_chart("Time and FLOPs of a training step by operator", bars, ChartSize::wide);
}

std::string save_profile(const StepProfile& profile, const std::filesystem::path& folder,
                         const GnuplotRunner& gnuplot) {
  write_file(folder / "profile.json", to_json(profile).dump(1) + "\n");
  try {
    write_file(folder / "profile.svg", standalone_svg(gnuplot.svg(profile_chart(profile))));
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return "";
}

}  // namespace fovea
