// The page of `fovea inspect`: maps side by side, temperature and entropy, kernels, groups.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "fovea/report/format.h"
#include "fovea/report/html_parts.h"
#include "fovea/report/inspect_result.h"

namespace fovea {
namespace {

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return values.empty() ? kNotANumber : sum / static_cast<double>(values.size());
}

std::string heading(const InspectResult& result) {
  std::string names;
  for (const InspectModel& model : result.models)
    names += (names.empty() ? "" : " and ") + model.name;
  return fmt::format(
      "<header class=\"top\"><div class=\"kicker\"><span>Fovea · inspection</span><button "
      "type=\"button\" id=\"theme\">Dark</button></div>\n<h1>{}</h1>\n<p class=\"lead\">What "
      "attention does on {} tokens of text.</p>\n</header>\n",
      escape_html(names), result.tokens);
}

std::string layers_section(const InspectResult& result) {
  NumberTable table{
      {"layer", "entropy", "largest weight", "on the first token", "temperature", "settings"}, {}};
  for (const InspectModel& model : result.models) {
    for (const InspectLayer& layer : model.layers) {
      table.rows.push_back(
          {fmt::format("{}, layer {}", model.name, layer.layer), fixed_text(mean(layer.entropy), 3),
           fixed_text(mean(layer.largest_weight), 3), percent_text(mean(layer.sink_mass)),
           fixed_text(layer.temperature, 3), layer.pipeline});
    }
  }
  return "<section id=\"layers\"><h2>Temperature and entropy</h2>\n<p class=\"note\">Mean over "
         "heads "
         "and rows; entropy in nats.</p>\n" +
         number_table_html(table) + "</section>\n";
}

// A kernel as an SVG: rows are queries, the current one last; positive blue, negative orange.
std::string kernel_svg(const InspectKernel& kernel) {
  constexpr int cell = 14;
  double most = 1e-12;
  for (const double w : kernel.weights) most = std::max(most, std::abs(w));
  const std::string kind(
      kernel_kind_name(kernel_kind(kernel.weights, kernel.queries, kernel.keys)));
  std::string svg = fmt::format(
      "<svg class=\"kernel\" data-kind=\"{0}\" role=\"img\" width=\"{1}\" height=\"{2}\" "
      "viewBox=\"0 0 "
      "{1} {2}\"><title>layer {3}, head {4}: {0}, largest {5:.3g}</title>",
      kind, kernel.keys * cell, kernel.queries * cell, kernel.layer, kernel.head, most);
  svg += fmt::format(
      "<rect width=\"{}\" height=\"{}\" fill=\"var(--chart-grid)\" fill-opacity=\"0.5\"/>",
      kernel.keys * cell, kernel.queries * cell);
  for (int64_t a = 0; a < kernel.queries; ++a) {
    for (int64_t b = 0; b < kernel.keys; ++b) {
      const double w = kernel.weights[static_cast<size_t>(a * kernel.keys + b)];
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"var(--series-{})\" "
          "fill-opacity=\"{:.3f}\"/>",
          b * cell, a * cell, cell - 1, cell - 1, w < 0.0 ? 2 : 1, std::abs(w) / most);
    }
  }
  return svg + "</svg>";
}

std::string kernels_of(const InspectModel& model, bool before) {
  std::map<int64_t, std::string> layers;
  std::map<std::string, int64_t> kinds;
  for (const InspectKernel& kernel : model.kernels) {
    if (kernel.before != before) continue;
    layers[kernel.layer] += fmt::format(
        "<span style=\"display:inline-block;margin:0 12px 8px 0;font-size:12.5px\">{}<br>head {}: "
        "{}</span>",
        kernel_svg(kernel), kernel.head,
        kernel_kind_name(kernel_kind(kernel.weights, kernel.queries, kernel.keys)));
    ++kinds[std::string(
        kernel_kind_name(kernel_kind(kernel.weights, kernel.queries, kernel.keys)))];
  }
  if (layers.empty()) return "";
  std::string counts;
  for (const auto& [kind, count] : kinds)
    counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, kind);
  std::string out = fmt::format("<h3>{}, {} the softmax</h3>\n<p class=\"note\">{}.</p>\n",
                                escape_html(model.name), before ? "before" : "after", counts);
  for (const auto& [layer, pictures] : layers)
    out += fmt::format("<p class=\"note\">Layer {}</p><div class=\"card\">{}</div>\n", layer,
                       pictures);
  return out;
}

std::string mixes_of(const InspectModel& model) {
  NumberTable table{{"mixing", "mean diagonal", "least diagonal", "mean size elsewhere"}, {}};
  for (const InspectMix& mix : model.mixes) {
    table.rows.push_back({fmt::format("layer {}, {}", mix.layer, mix.before ? "before" : "after"),
                          fixed_text(mix.diagonal_mean, 3), fixed_text(mix.diagonal_least, 3),
                          fixed_text(mix.other_mean_size, 3)});
  }
  return table.rows.empty()
             ? ""
             : "<h3>" + escape_html(model.name) + ", head mixing</h3>\n" + number_table_html(table);
}

std::string kernels_section(const InspectResult& result) {
  std::string out;
  for (const InspectModel& model : result.models)
    out += kernels_of(model, true) + kernels_of(model, false) + mixes_of(model);
  if (out.empty()) return "";
  return "<section id=\"kernels\"><h2>Kernels of Multi-Token Attention</h2>\n<p class=\"note\">One "
         "picture a head: rows are queries, the current one at the bottom; columns are keys around "
         "the current one. Blue adds, orange takes away.</p>\n" +
         out + "</section>\n";
}

// The text, every token on the colour of its group.
std::string coloured_text(const std::vector<std::string>& tokens, const InspectFocus& focus) {
  constexpr int64_t kColours = 8;  // of the page's series
  if (tokens.empty() || tokens.size() != focus.first_choices.size()) return "";
  const auto colour = [](int64_t group) {
    return fmt::format("--c:var(--series-{})", group % kColours);
  };
  std::string out = "<p class=\"note\">";
  for (const InspectGroup& group : focus.groups)
    out += fmt::format("<span class=\"swatch\" style=\"{}\"></span>{} &nbsp; ", colour(group.group),
                       group.group);
  out += "</p>\n<div class=\"card grouped\">";
  for (size_t i = 0; i < tokens.size(); ++i)
    out +=
        fmt::format("<span style=\"{}\" title=\"group {}\">{}</span>",
                    colour(focus.first_choices[i]), focus.first_choices[i], escape_html(tokens[i]));
  return out + "</div>\n";
}

std::string groups_of(const InspectModel& model, const InspectFocus& focus) {
  NumberTable table{{"group", "share", "confidence", "mostly", "purity", "frequent tokens"}, {}};
  for (const InspectGroup& group : focus.groups) {
    std::string tokens;
    for (const InspectToken& token : group.top_tokens)
      tokens += fmt::format("{}{} ({})", tokens.empty() ? "" : "  ", token.text, token.count);
    table.rows.push_back({fmt::format("{}", group.group), percent_text(group.share),
                          fixed_text(group.confidence, 3), group.main_class,
                          percent_text(group.purity), single_line(tokens)});
  }
  std::string out = fmt::format(
      "<h3>{}, layer {}</h3>\n<p class=\"note\">The hard rule keeps {} of all pairs and {} of "
      "distant ones.</p>\n",
      escape_html(model.name), focus.layer, percent_text(focus.pairs_kept),
      percent_text(focus.distant_kept));
  out += coloured_text(model.tokens, focus) + number_table_html(table);
  NumberTable pairs{{"looks", "back at", "distance", "agreement"}, {}};
  for (const InspectPair& pair : focus.pairs) {
    pairs.rows.push_back({fmt::format("{} (position {})", single_line(pair.query_text), pair.query),
                          single_line(pair.key_text), fmt::format("{}", pair.query - pair.key),
                          fixed_text(pair.agreement, 3)});
  }
  if (!pairs.rows.empty()) out += number_table_html(pairs);
  return out;
}

std::string groups_section(const InspectResult& result) {
  std::string out;
  for (const InspectModel& model : result.models) {
    for (const InspectFocus& focus : model.focus) out += groups_of(model, focus);
  }
  if (out.empty()) return "";
  return "<section id=\"groups\"><h2>Groups of Focus</h2>\n<p class=\"note\">Tokens by the group "
         "that "
         "each chooses first. Purity is the share of the group's largest class of tokens.</p>\n" +
         out + "</section>\n";
}

}  // namespace

std::string inspect_html(const InspectResult& result) {
  CompareResult maps;  // the report's own section draws them
  for (const InspectModel& model : result.models) {
    maps.variants.push_back({.name = model.name, .attention_maps = model.maps});
  }
  if (!maps.variants.empty()) maps.reference = maps.variants.front().name;
  const std::string body = heading(result) + attention_section(maps) + layers_section(result) +
                           kernels_section(result) + groups_section(result);
  return page_html("Fovea inspection", "", body);
}

}  // namespace fovea
