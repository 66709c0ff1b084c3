// The page as a whole: head, answer, sections.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/html_report.h"

#include <fmt/format.h>

#include "fovea/base/files.h"
#include "fovea/report/format.h"
#include "fovea/report/html_parts.h"

namespace fovea {
namespace {

std::string_view finding_class(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::better:
      return "good";
    case Finding::Kind::worse:
      return "bad";
    case Finding::Kind::open:
      return "open";
    case Finding::Kind::same:
    case Finding::Kind::baseline:
      return "plain";
  }
  return "";
}

std::string answer_html(const CompareResult& result) {
  const Answer answer = compare_answer(result);
  std::string out = fmt::format(
      "<header class=\"top\"><div class=\"kicker\"><span>Fovea · comparison</span><button "
      "type=\"button\" id=\"theme\">Dark"
      "</button></div>\n<h1>{}</h1>\n<p class=\"lead\">{}</p>\n<ul class=\"findings\">\n",
      escape_html(result.title), escape_html(answer.question));
  for (const Finding& finding : answer.findings) {
    out += fmt::format("<li class=\"{}\">{}</li>\n", finding_class(finding.kind),
                       escape_html(finding.text));
  }
  return out + "</ul>\n</header>\n";
}

}  // namespace

// The nonce is derived from the content, so that the same result gives the same bytes.
std::string page_html(std::string_view title, std::string_view code_version,
                      const std::string& body) {
  const std::string nonce = hex64(fingerprint(body));
  std::string page =
      fmt::format(R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{}'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="fovea {}">
<link rel="icon" href="data:,">
<title>{}</title>
<style>
{}</style>
</head>
)html",
                  nonce, escape_html(code_version), escape_html(single_line(title)), page_style());
  page += "<body>\n<main>\n" + body + "</main>\n";
  page +=
      fmt::format("<script nonce=\"{}\">\n{}</script>\n</body>\n</html>\n", nonce, page_script());
  return page;
}

std::string html_report(const CompareResult& result, const HtmlReportOptions& options) {
  ChartPress press(options);
  std::string sections = results_section(result) + tasks_section(result);
  for (const auto section : {seeds_section, training_section, scaling_section})
    sections += section(result, press);
  sections += attention_section(result);
  for (const auto section : {temperature_section, cost_section}) sections += section(result, press);
  sections += samples_section(result) + measured_section(result);

  std::string body = answer_html(result);
  if (!press.trouble().empty()) {
    body += fmt::format(
        "<p class=\"notice\" role=\"note\">Charts could not be drawn, so their numbers stand in "
        "their "
        "place. {}</p>\n",
        escape_html(press.trouble()));
  }
  return page_html(result.title, result.code_version, body + sections);
}

void save_html_report(const CompareResult& result, const std::filesystem::path& path,
                      const HtmlReportOptions& options) {
  write_file(path, html_report(result, options));
}

}  // namespace fovea
