// The HTML report of a comparison: one self-contained file that loads nothing from the network.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "fovea/report/compare_result.h"

namespace fovea {

struct HtmlReportOptions {
  /// The gnuplot program. Where it cannot run, the report says so and shows the numbers as tables
  /// instead of charts.
  std::string gnuplot = "gnuplot";
  double gnuplot_timeout_seconds = 20;  // per chart
};

/// The whole page. Every text of `result` is escaped; it may come from anywhere. Call summarise()
/// before.
std::string html_report(const CompareResult& result, const HtmlReportOptions& options = {});

/// Writes the page atomically.
void save_html_report(const CompareResult& result, const std::filesystem::path& path,
                      const HtmlReportOptions& options = {});

}  // namespace fovea
