// The HTML page of a retrofit: quality against pairs, speed against context, all numbers.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/report/html_report.h"

namespace fovea {

/// One way to attend, and how well the model predicts then.
struct RetrofitPageRow {
  std::string family = "";  ///< "full", "trained groups", "window", ...: the rows of one curve
  std::string name = "";
  double pairs = 1.0;       ///< share of causal pairs, 0 ... 1
  double perplexity = 0.0;  ///< per token
  double copy = 0.0;        ///< of the second copy; 0 = not measured
  double bytes_read = 0.0;  ///< of the caches, to write a token; 0 = not known
};

struct RetrofitPageSpeed {
  std::string family = "";  ///< "full", "top-1"
  int64_t context = 0;      ///< tokens
  double prompt_rate = 0;   ///< tokens a second
  double rate = 0;          ///< tokens a second
};

struct RetrofitPage {
  std::string base = "", kinds = "", command = "", code_version = "", machine = "";
  int64_t base_parameters = 0, added_parameters = 0;  ///< 0: nothing was trained for the page
  double minutes = 0;                                 ///< of training
  std::vector<RetrofitPageRow> rows = {};             ///< the base first
  std::vector<RetrofitPageSpeed> speeds = {};
};

/// One self-contained page, as html_report.h makes them. Every text is escaped.
std::string retrofit_html(const RetrofitPage& page, const HtmlReportOptions& options = {});

}  // namespace fovea
