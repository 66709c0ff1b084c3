// Sections of charts, each with the numbers it draws.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"
#include "fovea/report/format.h"
#include "fovea/report/html_parts.h"

namespace fovea {
namespace {

/// About ten rows of the bands of a chart, so that a screen reader and a printout have its course.
NumberTable band_numbers(const std::vector<Band>& bands, const std::string& x_title,
                         const std::function<std::string(const Band&)>& name_of) {
  constexpr size_t kRows = 10;
  NumberTable table{{x_title}, {}};
  const Band* longest = nullptr;
  for (const Band& band : bands) {
    table.columns.push_back(name_of(band));
    if (longest == nullptr || band.x.size() > longest->x.size()) longest = &band;
  }
  if (longest == nullptr) return table;
  const size_t count = longest->x.size(), rows = std::min(kRows, count);
  for (size_t r = 0; r < rows; ++r) {
    const double x = longest->x[rows == 1 ? 0 : r * (count - 1) / (rows - 1)];
    std::vector<std::string> row = {fmt::format("{:.4g}", x)};
    for (const Band& band : bands) {
      const bool covered = x >= band.x.front() && x <= band.x.back();
      row.push_back(covered ? fixed_text(Line{band.x, band.mean}.at(x), 4) : "–");
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string legend_html(const CompareResult& result) {
  std::string out =
      "<div class=\"legend\" role=\"group\" aria-label=\"Show or fade a variant in all charts\">\n";
  for (size_t i = 0; i < result.variants.size(); ++i) {
    out += fmt::format(
        "<button type=\"button\" class=\"chip\" aria-pressed=\"true\" "
        "data-toggle=\"{}\">{}{}</button>\n",
        escape_html(result.variants[i].name), swatch_html(result, i),
        escape_html(shorten(single_line(result.variants[i].name), 48)));
  }
  return out + "</div>\n";
}

std::string levels_text(const CompareResult& result) {
  std::string out;
  for (const CompareBaseline& baseline : result.baselines) {
    out += fmt::format("{}{} {}", out.empty() ? " Dashed: " : ", ", single_line(baseline.name),
                       fixed_text(baseline.bits_per_byte, 3));
  }
  return out.empty() ? out : out + ".";
}

std::string bits_figure(const CompareResult& result, ChartPress& press) {
  std::vector<Bar> bars;
  NumberTable numbers{{"model", "mean", "lowest", "highest"}, {}};
  for (size_t i = 0; i < result.variants.size(); ++i) {
    const CompareVariant& variant = result.variants[i];
    const Spread& bits = variant.summary.bits_per_byte;
    bars.push_back({.name = variant.name,
                    .value = bits.mean,
                    .low = bits.min,
                    .high = bits.max,
                    .text = fixed_text(bits.mean, 3),
                    .color = ChartColor::kSeries + series_of(result, i),
                    .variant = variant.name});
    numbers.rows.push_back(
        {variant.name, fixed_text(bits.mean, 4), fixed_text(bits.min, 4), fixed_text(bits.max, 4)});
  }
  for (const CompareBaseline& baseline : result.baselines) {
    bars.push_back({.name = baseline.name,
                    .value = baseline.bits_per_byte,
                    .text = fixed_text(baseline.bits_per_byte, 3)});
    numbers.rows.push_back({baseline.name, fixed_text(baseline.bits_per_byte, 4), "–", "–"});
  }
  return press.figure_html(
      {.title = "Bits per byte",
       .subtitle =
           "Validation text, mean over seeds; the whisker runs from the best seed to the worst. "
           "Lower is better.",
       .chart =
           [&](ChartSize size) { return bar_chart("Bits per byte of every model", bars, size); },
       .numbers = numbers,
       .extra = ""});
}

struct CostOf {
  std::string title, subtitle, column;
  std::function<double(const VariantSummary&)> value;
  std::function<std::string(double)> text;
};

std::string cost_figure(const CompareResult& result, ChartPress& press, const CostOf& cost) {
  std::vector<Bar> bars;
  NumberTable numbers{{"variant", cost.column}, {}};
  for (size_t i = 0; i < result.variants.size(); ++i) {
    const CompareVariant& variant = result.variants[i];
    const double value = cost.value(variant.summary);
    bars.push_back({.name = variant.name,
                    .value = value,
                    .text = cost.text(value),
                    .color = ChartColor::kSeries + series_of(result, i),
                    .variant = variant.name});
    numbers.rows.push_back({variant.name, cost.text(value)});
  }
  return press.figure_html(
      {.title = cost.title,
       .subtitle = cost.subtitle,
       .chart = [&](ChartSize size) { return bar_chart(cost.title, bars, size); },
       .numbers = numbers,
       .extra = ""});
}

std::string curve_figure(const CompareResult& result, ChartPress& press, const CurveChart& chart,
                         const std::string& title, const std::string& subtitle,
                         bool spans = false) {
  if (chart.bands.empty()) return "";
  const auto name_of = [&](const Band& band) { return result.variants[band.variant].name; };
  return press.figure_html(
      {.title = title,
       .subtitle = subtitle,
       .chart = [&](ChartSize size) { return curve_chart(result, chart, size); },
       .numbers = band_numbers(chart.bands, chart.x_title, name_of),
       .extra = "",
       .spans = spans});
}

double final_clipped_share(const CompareVariant& variant) {
  double sum = 0, count = 0;
  for (const CompareRun& run : variant.runs) {
    if (run.temperature.empty()) continue;
    sum += run.temperature.back().clipped_share;
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

}  // namespace

std::string ChartPress::figure_html(const Figure& figure) {
  std::string drawing;
  if (trouble_.empty()) {
    try {
      const auto add = [&](std::string_view name, ChartSize size) {
        drawing +=
            fmt::format("<div class=\"{}\">{}</div>\n", name, runner_.svg(figure.chart(size)));
      };
      if (figure.spans) add("full", ChartSize::full);
      add("wide", ChartSize::wide);
      add("narrow", ChartSize::narrow);
    } catch (const Error& error) {
      trouble_ = error.what();  // shown once, at the top of the page
      drawing.clear();
    }
  }
  std::string out =
      fmt::format("<figure class=\"card{}\"><figcaption>", figure.spans ? " span" : "");
  out += fmt::format("<h3>{}</h3>", escape_html(figure.title));
  out += fmt::format("<p>{}</p></figcaption>\n", escape_html(figure.subtitle));
  out += drawing + figure.extra;
  out += fmt::format("<details{}><summary>Numbers</summary>\n", drawing.empty() ? " open" : "");
  return out + number_table_html(figure.numbers) + "</details></figure>\n";
}

std::string seeds_section(const CompareResult& result, ChartPress& press) {
  std::string figures;
  NumberTable numbers{{"variant", "seeds in common", "mean difference", "standard error",
                       "95 % interval", "p", "p (Holm)", "p as good", "seeds needed", "verdict"},
                      {}};
  for (const CompareVariant& variant : result.variants) {
    const VariantSummary& summary = variant.summary;
    if (summary.verdict == Verdict::reference || summary.pairs == 0) continue;
    numbers.rows.push_back(
        {variant.name, fmt::format("{}", summary.pairs), fixed_text(summary.difference, 4),
         fixed_text(summary.difference_error, 4), interval_text(summary, 4), p_text(summary.p),
         p_text(summary.corrected_p), p_text(summary.equivalence_p), pairs_needed_text(summary),
         std::string(verdict_text(summary.verdict))});
  }
  if (!numbers.rows.empty()) {
    figures +=
        press.figure_html({.title = "Difference to " + single_line(result.reference),
                           .subtitle = "Bits per byte, seed by seed: a dot per seed, the upright "
                                       "mark is the mean, the line its 95 % interval "
                                       "by Student's t.",
                           .chart = [&](ChartSize size) { return difference_chart(result, size); },
                           .numbers = numbers,
                           .extra = ""});
  }
  if (!result.variants.empty() || !result.baselines.empty()) figures += bits_figure(result, press);
  return "<section><h2>How sure is it?</h2>\n<div class=\"grid\">\n" + figures +
         "</div></section>\n";
}

std::string training_section(const CompareResult& result, ChartPress& press) {
  const ProgressAxis axis = progress_axis(result);
  const auto loss = loss_bands(result, axis), validation = validation_bands(result, axis),
             difference = difference_bands(result, axis), ln_z = ln_z_bands(result, axis);
  const std::string band = " Line: mean over seeds; shade: lowest to highest.";
  std::string figures = curve_figure(
      result, press,
      {.label = "Training loss of every variant",
       .x_title = axis.title,
       .bands = loss,
       .top = top_without_start(loss)},
      "Training loss",
      "Nats per token, averaged over neighbouring steps; the steep start is cut off." + band);
  figures += curve_figure(result, press,
                          {.label = "Validation bits per byte of every variant",
                           .x_title = axis.title,
                           .bands = validation,
                           .levels = result.baselines,
                           .top = top_without_start(validation),
                           .with_points = true},
                          "Validation", "Bits per byte." + band + levels_text(result));
  figures += curve_figure(
      result, press,
      {.label = "Validation difference to the reference over training",
       .x_title = axis.title,
       .bands = difference,
       .with_points = true},
      "Lead over " + single_line(result.reference) + " while training",
      "Difference in validation bits per byte, seed by seed; below zero is better." + band, true);
  figures += curve_figure(
      result, press,
      {.label = "ln Z of every variant over training", .x_title = axis.title, .bands = ln_z},
      "ln Z of the logits",
      "Root mean square over the targets of a step; Z is the softmax's sum. train.z_loss pulls it "
      "towards 0." +
          band);
  if (figures.empty()) return "";
  return "<section><h2>While training</h2>\n" + legend_html(result) + "<div class=\"grid\">\n" +
         figures + "</div></section>\n";
}

std::string cost_section(const CompareResult& result, ChartPress& press) {
  if (result.variants.empty()) return "";
  std::string out = "<section><h2>What it costs</h2>\n<div class=\"grid\">\n";
  out += cost_figure(result, press,
                     {"Speed", "Training tokens per second, median over seeds. Higher is better.",
                      "tokens/s", [](const VariantSummary& s) { return s.tokens_per_second; },
                      [](double value) { return count_text(value); }});
  out += cost_figure(
      result, press,
      {"Memory", "Peak memory of the process, largest over seeds. Lower is better.", "peak memory",
       [](const VariantSummary& s) {
         return s.finished_runs > 0 ? static_cast<double>(s.peak_memory_bytes) : kNotANumber;
       },
       [](double value) { return bytes_text(value); }});
  return out + "</div></section>\n";
}

std::string temperature_section(const CompareResult& result, ChartPress& press) {
  std::string figures;
  for (const CompareVariant& variant : result.variants) {
    const std::vector<Band> layers = temperature_bands(variant);
    if (layers.empty()) continue;
    const auto name_of = [](const Band& band) { return fmt::format("layer {}", band.variant); };
    std::string key = "<div class=\"layers\">";
    for (size_t i = 0; i < layers.size(); ++i) {
      const size_t shade = i * (kLayerColors - 1) / (std::max<size_t>(layers.size(), 2) - 1);
      key += fmt::format(
          "<span><span class=\"swatch\" style=\"--c:var(--layer-{})\"></span>layer {}</span>",
          shade, layers[i].variant);
    }
    key += "</div>\n";
    figures += press.figure_html(
        {.title = variant.name,
         .subtitle = fmt::format("Effective temperature t, mean over seeds. Share of values held "
                                 "at a bound at the end: {:.0f} %.",
                                 100 * final_clipped_share(variant)),
         .chart = [&](ChartSize size) { return temperature_chart(variant, layers, size); },
         .numbers = band_numbers(layers, "step", name_of),
         .extra = key});
  }
  if (figures.empty()) return "";
  return "<section><h2>Temperature by layer</h2>\n<p class=\"note\">Attention logits are divided "
         "by t on top of 1/√d: below 1 "
         "sharpens attention, above 1 flattens it.</p>\n<div class=\"grid\">\n" +
         figures + "</div></section>\n";
}

}  // namespace fovea
