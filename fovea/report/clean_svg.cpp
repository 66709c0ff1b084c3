// From gnuplot's SVG to the page's: theme colours, escaped texts, tags of variants, nothing that is
// not drawn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdlib>
#include <functional>

#include "fovea/report/format.h"
#include "fovea/report/gnuplot.h"

namespace fovea {
namespace {

// Two bytes that no text of ours uses as a color: red and green of every stand-in.
constexpr int kRed = 0x0A, kGreen = 0x0B;

using Replace = std::function<std::string(std::string_view between)>;

/// Replaces every `open ... close`, both included, by what `replace` makes of the part between.
std::string replace_spans(std::string_view text, std::string_view open, std::string_view close,
                          const Replace& replace) {
  std::string out;
  while (true) {
    const size_t start = text.find(open);
    const size_t end =
        start == std::string_view::npos ? start : text.find(close, start + open.size());
    if (end == std::string_view::npos) break;
    out += text.substr(0, start);
    out += replace(text.substr(start + open.size(), end - start - open.size()));
    text.remove_prefix(end + close.size());
  }
  return out += text;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  return out += text;
}

/// "rgb( 10,  11,   3)" becomes "var(--chart-surface)"; other colours stay.
std::string theme_colors(std::string_view text) {
  return replace_spans(text, "rgb(", ")", [](std::string_view inside) {
    const std::string numbers(inside);
    char* rest = nullptr;
    const long red = std::strtol(numbers.c_str(), &rest, 10);
    const long green = *rest == ',' ? std::strtol(rest + 1, &rest, 10) : -1;
    const long role = *rest == ',' ? std::strtol(rest + 1, &rest, 10) : -1;
    if (red != kRed || green != kGreen || role < 0) return fmt::format("rgb({})", inside);
    return fmt::format("var({})", color_variable(static_cast<int>(role)));
  });
}

/// The n-th group of a plot gets its class and variant instead of gnuplot's id and title.
std::string tag_plots(std::string_view text, const GnuplotChart& chart) {
  return replace_spans(
      text, "<g id=\"gnuplot_plot_", "</title>", [&](std::string_view inside) -> std::string {
        const size_t index = static_cast<size_t>(std::atoi(std::string(inside).c_str())) - 1;
        if (index >= chart.plots.size()) return "<g>";
        const PlotTag& tag = chart.plots[index];
        std::string out = fmt::format("<g class=\"{}\"", escape_html(tag.kind));
        if (!tag.variant.empty())
          out += fmt::format(" data-variant=\"{}\"", escape_html(tag.variant));
        out += ">";
        if (!tag.title.empty()) out += fmt::format("<title>{}</title>", escape_html(tag.title));
        return out;
      });
}

/// gnuplot draws points by reference to definitions that would clash between the charts of one
/// page.
std::string draw_points(std::string_view text) {
  return replace_spans(text, "<use xlink:href='#gpPt6'", "/>", [](std::string_view inside) {
    const std::string filled = replace_all(inside, " color=", " fill=");
    return fmt::format("<circle r='1' stroke='none'{}/>", filled);
  });
}

/// Groups that hold nothing, which is most of what gnuplot writes.
std::string drop_empty_groups(std::string text) {
  for (size_t at = 0; (at = text.find("<g", at)) != std::string::npos;) {
    const size_t end = text.find('>', at);
    size_t next = end == std::string::npos ? end : text.find_first_not_of(" \t\n", end + 1);
    if (next != std::string::npos && text.compare(next, 4, "</g>") == 0) {
      text.erase(at, next + 4 - at);
      at = at > 256 ? at - 256 : 0;  // its parent may be empty now
    } else {
      at += 2;
    }
  }
  return text;
}

std::string drop_blank_lines(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1);
    std::string_view line = text.substr(0, end + 1);
    text.remove_prefix(end + 1);
    const size_t start = line.find_first_not_of(" \t\n");
    if (start != std::string_view::npos) out += line.substr(start);
  }
  return out;
}

std::string placeholder(size_t index) { return fmt::format("@@{}@@", index); }

}  // namespace

std::string color_code(int role) { return fmt::format("#{:02x}{:02x}{:02x}", kRed, kGreen, role); }

std::string color_variable(int role) {
  static constexpr std::string_view kNames[] = {"--chart-text", "--chart-muted", "--chart-grid",
                                                "--chart-surface", "--chart-baseline"};
  if (role >= ChartColor::kLayers)
    return fmt::format("--layer-{}", (role - ChartColor::kLayers) % kLayerColors);
  if (role >= ChartColor::kSeries)
    return fmt::format("--series-{}", (role - ChartColor::kSeries) % kSeriesColors);
  return std::string(kNames[static_cast<size_t>(role) % std::size(kNames)]);
}

std::string GnuplotChart::text(std::string value) {
  texts.push_back(std::move(value));
  return placeholder(texts.size() - 1);
}

std::string clean_svg(std::string_view raw, const GnuplotChart& chart) {
  const size_t canvas = raw.find("<g id=\"gnuplot_canvas\">");
  if (canvas != std::string_view::npos) raw.remove_prefix(canvas);
  const auto drop = [](std::string_view) { return std::string(); };
  std::string body = replace_spans(raw, "<defs>", "</defs>", drop);
  body = replace_all(body, "<g id=\"gnuplot_canvas\">", "<g>");
  body =
      replace_spans(body, "<rect x=\"0\" y=\"0\"", "/>", drop);  // the page has its own background
  body = draw_points(body);
  body = theme_colors(body);
  // Fonts come from the page; these attributes are the defaults of SVG.
  for (const std::string_view noise :
       {" font-family=\"sans-serif\"", " stroke-linecap=\"butt\"", " stroke-linejoin=\"miter\"",
        "<tspan >", " stroke-width=\"1.00\"", " color=\"black\"", " color=\"#FFFFFF\"",
        " shape-rendering='crispEdges'"}) {
    body = replace_all(body, noise, "");
  }
  body = replace_all(body, "</tspan>", "");
  body = replace_all(body, "stroke=\"currentColor\"",
                     fmt::format("stroke=\"var({})\"", color_variable(0)));
  body = drop_blank_lines(drop_empty_groups(std::move(body)));
  // Texts come after the steps that would take them for markup, and before the tags, which hold
  // texts of their own.
  body = replace_spans(body, "@@", "@@", [&](std::string_view index) {
    const size_t i = static_cast<size_t>(std::atoi(std::string(index).c_str()));
    return i < chart.texts.size() ? escape_html(chart.texts[i]) : std::string();
  });
  body = tag_plots(body, chart);
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}", chart.width,
                     chart.height, escape_html(chart.label), body);
}

}  // namespace fovea
