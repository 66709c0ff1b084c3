// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/retrofit_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "fovea/report/format.h"
#include "fovea/report/html_parts.h"

namespace fovea {
namespace {

std::string training_text(const RetrofitPage& page) {
  const double share = page.base_parameters > 0 ? static_cast<double>(page.added_parameters) /
                                                      static_cast<double>(page.base_parameters)
                                                : 0.0;
  return fmt::format(
      "<p class=\"lead\">{} parameters on a frozen base of {} ({:.3f} %), {:.1f} minutes of "
      "training.</p>\n",
      count_text(double(page.added_parameters)), count_text(double(page.base_parameters)),
      100.0 * share, page.minutes);
}

std::string heading(const RetrofitPage& page) {
  const bool trained = page.base_parameters > 0;
  return fmt::format(
             "<header class=\"top\"><div class=\"kicker\"><span>Fovea · {}</span><button "
             "type=\"button\" id=\"theme\">Dark</button></div>\n<h1>{} on {}</h1>\n",
             trained ? "retrofit" : "side by side", escape_html(page.kinds),
             escape_html(page.base)) +
         (trained ? training_text(page) : "") + "</header>\n";
}

/// A curve for each family, in order of first appearance; x and y of its points.
struct Curves {
  CompareResult names;  // a variant a family: names and colours
  std::vector<Band> bands;

  void add(const std::string& family, double x, double y) {
    const auto same = [&](const CompareVariant& v) { return v.name == family; };
    auto found = std::ranges::find_if(names.variants, same);
    if (found == names.variants.end()) {
      if (names.variants.empty()) names.reference = family;
      names.variants.push_back({.name = family});
      bands.push_back({.variant = names.variants.size() - 1});
      found = names.variants.end() - 1;
    }
    Band& band = bands[static_cast<size_t>(found - names.variants.begin())];
    const auto at = std::ranges::upper_bound(band.x, x) - band.x.begin();
    band.x.insert(band.x.begin() + at, x);
    for (std::vector<double>* values : {&band.mean, &band.low, &band.high})
      values->insert(values->begin() + at, y);
  }
};

std::string quality_figure(const RetrofitPage& page, ChartPress& press, const char* title,
                           const char* column, double RetrofitPageRow::*score) {
  Curves curves;
  std::vector<CompareBaseline> levels;
  NumberTable numbers{{"attention", "pairs", column}, {}};
  for (const RetrofitPageRow& row : page.rows) {
    if (row.*score <= 0.0) continue;
    numbers.rows.push_back({row.name, percent_text(row.pairs), fixed_text(row.*score, 3)});
    if (row.pairs >= 1.0) {
      levels.push_back({row.name, row.*score});
    } else {
      curves.add(row.family, 100.0 * row.pairs, row.*score);
    }
  }
  if (curves.bands.empty())
    return numbers.rows.empty()
               ? ""
               : "<h3>" + std::string(title) + "</h3>\n" + number_table_html(numbers);
  return press.figure_html({.title = title,
                            .subtitle = std::string(column) +
                                        " against the share of causal pairs that are attended; "
                                        "lower is better. Dashed: every pair.",
                            .chart =
                                [&](ChartSize size) {
                                  return curve_chart(curves.names,
                                                     {.label = title,
                                                      .x_title = "% of causal pairs",
                                                      .bands = curves.bands,
                                                      .levels = levels,
                                                      .with_points = true},
                                                     size);
                                },
                            .numbers = numbers});
}

std::string bytes_figure(const RetrofitPage& page, ChartPress& press) {
  Curves curves;
  NumberTable numbers{{"attention", "MB read a token", "perplexity"}, {}};
  for (const RetrofitPageRow& row : page.rows) {
    if (row.bytes_read <= 0.0) continue;
    curves.add(row.family, row.bytes_read / 1e6, row.perplexity);
    numbers.rows.push_back(
        {row.name, fixed_text(row.bytes_read / 1e6, 2), fixed_text(row.perplexity, 3)});
  }
  if (curves.bands.empty()) return "";
  return press.figure_html(
      {.title = "Quality and memory",
       .subtitle = "Perplexity against the MB of keys and values that writing a token reads; lower "
                   "and further left is better. A point for each length.",
       .chart =
           [&](ChartSize size) {
             return curve_chart(curves.names,
                                {.label = "Perplexity",
                                 .x_title = "MB read a token",
                                 .bands = curves.bands,
                                 .with_points = true},
                                size);
           },
       .numbers = numbers});
}

std::string speed_figure(const RetrofitPage& page, ChartPress& press, const char* title,
                         double RetrofitPageSpeed::*rate) {
  Curves curves;
  NumberTable numbers{{"attention", "tokens in the context", "tokens/s"}, {}};
  for (const RetrofitPageSpeed& speed : page.speeds) {
    curves.add(speed.family, double(speed.context), speed.*rate);
    numbers.rows.push_back(
        {speed.family, fmt::format("{}", speed.context), fixed_text(speed.*rate, 1)});
  }
  return press.figure_html({.title = title,
                            .subtitle = "Tokens a second against the length of the context.",
                            .chart =
                                [&](ChartSize size) {
                                  return curve_chart(curves.names,
                                                     {.label = title,
                                                      .x_title = "tokens in the context",
                                                      .bands = curves.bands,
                                                      .with_points = true},
                                                     size);
                                },
                            .numbers = numbers});
}

}  // namespace

std::string retrofit_html(const RetrofitPage& page, const HtmlReportOptions& options) {
  ChartPress press(options);
  std::string quality =
      quality_figure(page, press, "Prediction", "perplexity", &RetrofitPageRow::perplexity) +
      quality_figure(page, press, "A text that comes again", "copy perplexity",
                     &RetrofitPageRow::copy) +
      bytes_figure(page, press);
  std::string sections = "<section id=\"quality\"><h2>What it keeps</h2>\n<div class=\"grid\">\n" +
                         quality + "</div></section>\n";
  if (!page.speeds.empty())
    sections += "<section id=\"speed\"><h2>What it costs</h2>\n<div class=\"grid\">\n" +
                speed_figure(page, press, "Writing", &RetrofitPageSpeed::rate) +
                speed_figure(page, press, "Reading a prompt", &RetrofitPageSpeed::prompt_rate) +
                "</div></section>\n";
  sections += fmt::format(
      "<section id=\"measured\"><h2>Measured</h2>\n<p class=\"note\">{}</p>\n"
      "<p class=\"note\"><code>{}</code></p></section>\n",
      escape_html(page.machine), escape_html(page.command));
  std::string notice;
  if (!press.trouble().empty())
    notice = fmt::format(
        "<p class=\"notice\" role=\"note\">Charts could not be drawn, so their numbers stand in "
        "their place. {}</p>\n",
        escape_html(press.trouble()));
  return page_html("Fovea retrofit", page.code_version, heading(page) + notice + sections);
}

}  // namespace fovea
