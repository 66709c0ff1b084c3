// Parts of the HTML report, one function per section. Internal to this folder.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/report/charts.h"
#include "fovea/report/compare_result.h"
#include "fovea/report/html_report.h"

namespace fovea {

/// A whole page around `body` (the content of `main`, with a button "theme"): only our script runs,
/// and nothing is loaded from anywhere, whatever the texts in it say.
std::string page_html(std::string_view title, std::string_view code_version,
                      const std::string& body);

/// The stylesheet, colours of both themes included.
std::string page_style();
/// A chart of a page (GnuplotRunner::svg) as a file of its own, with the colours of both themes.
std::string standalone_svg(std::string_view svg);
/// The script of the page: theme, highlighting, attention maps.
std::string_view page_script();

/// A table of text cells; the first column is the row's heading, the others are numbers.
struct NumberTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};
std::string number_table_html(const NumberTable& table);

/// Draws charts, and remembers why it could not.
class ChartPress {
 public:
  explicit ChartPress(const HtmlReportOptions& options)
      : runner_{options.gnuplot, options.gnuplot_timeout_seconds} {}

  struct Figure {
    std::string title;
    std::string subtitle;  // unit and how to read it
    std::function<GnuplotChart(ChartSize)> chart;
    NumberTable numbers;
    std::string extra;   // HTML between chart and numbers
    bool spans = false;  // over the whole width of the page
  };
  /// A figure element with both sizes and its numbers; only the numbers where gnuplot does not run.
  std::string figure_html(const Figure& figure);
  /// Empty while all charts could be drawn.
  const std::string& trouble() const { return trouble_; }

 private:
  GnuplotRunner runner_;
  std::string trouble_;
};

/// "<span class=swatch>" in the color of a variant.
std::string swatch_html(const CompareResult& result, size_t variant);

std::string results_section(const CompareResult& result);
std::string tasks_section(const CompareResult& result);
std::string seeds_section(const CompareResult& result, ChartPress& press);
std::string training_section(const CompareResult& result, ChartPress& press);
std::string scaling_section(const CompareResult& result, ChartPress& press);
std::string cost_section(const CompareResult& result, ChartPress& press);
std::string attention_section(const CompareResult& result);
std::string temperature_section(const CompareResult& result, ChartPress& press);
std::string samples_section(const CompareResult& result);
std::string measured_section(const CompareResult& result);

}  // namespace fovea
