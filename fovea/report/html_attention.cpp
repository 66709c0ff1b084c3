// Attention maps: the weights as data for the page's script, and the place where it draws them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "fovea/report/format.h"
#include "fovea/report/html_parts.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    }
    for (size_t k = 0; k < 4; ++k)
      out += i + k > bytes.size() ? '=' : kDigits[group >> (18 - 6 * k) & 63];
  }
  return out;
}

/// The triangle row by row as 16-bit numbers between `low` and `high`: a tenth of the size of text,
/// exact to 1e-5.
Json packed_map(const AttentionMap& map, size_t text) {
  double low = 0, high = 0;  // weights of convolved attention may be negative or exceed 1
  for (const auto& row : map.rows) {
    for (const double weight : row) {
      if (!std::isfinite(weight)) continue;
      low = std::min(low, weight);
      high = std::max(high, weight);
    }
  }
  std::string bytes;
  const double scale = high > low ? 65535 / (high - low) : 0;
  for (const auto& row : map.rows) {
    for (const double weight : row) {
      const auto value =
          static_cast<uint32_t>(std::isfinite(weight) ? std::lround((weight - low) * scale) : 0);
      bytes += static_cast<char>(value & 255);
      bytes += static_cast<char>(value >> 8);
    }
  }
  return {{"layer", map.layer}, {"head", map.head}, {"text", text},
          {"low", low},         {"high", high},     {"weights", base64(bytes)}};
}

/// Mean entropy of the rows in bits.
double entropy_of(const AttentionMap& map) {
  double sum = 0;
  for (const auto& row : map.rows) {
    for (const double weight : row) sum -= weight > 0 ? weight * std::log2(weight) : 0;
  }
  return map.rows.empty() ? 0 : sum / static_cast<double>(map.rows.size());
}

const AttentionMap* find_map(const CompareVariant& variant, int64_t layer, int64_t head) {
  for (const AttentionMap& map : variant.attention_maps) {
    if (map.layer == layer && map.head == head) return &map;
  }
  return nullptr;
}

/// What is shown first: the reference beside the best other variant, and the head in which their
/// entropies differ most.
struct FirstView {
  size_t left = 0, right = 0;
  int64_t layer = 0, head = 0;
};

FirstView first_view(const CompareResult& result, const std::vector<size_t>& with_maps) {
  FirstView view{with_maps.front(), with_maps.front()};
  double best = INFINITY;
  for (const size_t v : with_maps) {
    if (result.variants[v].name == result.reference) view.left = v;
  }
  for (const size_t v : with_maps) {
    const double bits = result.variants[v].summary.bits_per_byte.mean;
    const double rank = std::isfinite(bits) ? bits : 1e9;
    if (v == view.left || rank >= best) continue;
    best = rank;
    view.right = v;
  }
  double most = -1;
  for (const AttentionMap& map : result.variants[view.left].attention_maps) {
    const AttentionMap* other = find_map(result.variants[view.right], map.layer, map.head);
    const double change = other == nullptr ? 0 : std::abs(entropy_of(map) - entropy_of(*other));
    if (change <= most) continue;
    most = change;
    view.layer = map.layer;
    view.head = map.head;
  }
  return view;
}

Json page_data(const CompareResult& result, const std::vector<size_t>& with_maps) {
  std::map<std::vector<std::string>, size_t> numbers;
  Json texts = Json::array(), variants = Json::array();
  for (const size_t v : with_maps) {
    Json maps = Json::array();
    for (const AttentionMap& map : result.variants[v].attention_maps) {
      const auto [place, is_new] = numbers.try_emplace(map.tokens, numbers.size());
      if (is_new) {
        Json tokens = Json::array();
        for (const std::string& token : map.tokens) tokens.push_back(repair_utf8(token));
        texts.push_back(std::move(tokens));
      }
      maps.push_back(packed_map(map, place->second));
    }
    variants.push_back({{"name", repair_utf8(result.variants[v].name)}, {"maps", std::move(maps)}});
  }
  const FirstView view = first_view(result, with_maps);
  const auto number_of = [&](size_t v) {
    return std::find(with_maps.begin(), with_maps.end(), v) - with_maps.begin();
  };
  return {{"texts", texts},
          {"variants", variants},
          {"left", number_of(view.left)},
          {"right", number_of(view.right)},
          {"layer", view.layer},
          {"head", view.head}};
}

/// Inside <script> only "</script" and "<!--" matter, and both need a '<'.
std::string script_json(const Json& data) {
  std::string out;
  for (const char c : data.dump()) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

std::string panel_html(std::string_view side, std::string_view title) {
  constexpr std::string_view kPanel = R"html(<div class="panel">
<label>@title <select id="@side-variant"></select></label>
<canvas id="@side-map" tabindex="0" role="img" aria-label="Attention weights, queries downwards, keys to the right; arrow keys move the marked pair"></canvas>
<p class="figures" id="@side-figures"></p>
<p class="strip" id="@side-strip"></p>
</div>
)html";
  std::string out(kPanel);
  for (const auto& [name, value] : {std::pair{"@side", side}, std::pair{"@title", title}}) {
    for (size_t at = 0; (at = out.find(name, at)) != std::string::npos;) {
      out.replace(at, std::string_view(name).size(), value);
    }
  }
  return out;
}

constexpr std::string_view kHead = R"html(<section><h2>Where attention looks</h2>
<p class="note">@readersEach row is a position that looks back: the stronger the colour of a cell, the more weight that earlier position gets. Point at a cell, or use the arrow keys, to read the pair; the text below shows where the marked position looks.</p>
<div class="card">
<div class="controls">
<label>Layer <select id="map-layer"></select></label>
<label>Head <select id="map-head"></select></label>
<label class="check"><input type="checkbox" id="map-root" checked> lift small weights</label>
<span class="ramp"><span>0</span><canvas id="map-ramp" width="96" height="8" aria-hidden="true"></canvas><span>1</span></span>
</div>
<p class="readout" id="map-readout" aria-live="polite">&nbsp;</p>
<div class="panels">
)html";

constexpr std::string_view kFoot = R"html(</div>
</div>
<noscript><p class="notice">The maps need JavaScript.</p></noscript>
)html";

}  // namespace

std::string attention_section(const CompareResult& result) {
  std::vector<size_t> with_maps;
  for (size_t v = 0; v < result.variants.size(); ++v) {
    if (!result.variants[v].attention_maps.empty()) with_maps.push_back(v);
  }
  if (with_maps.empty()) return "";
  const bool alone = with_maps.size() == 1;
  std::string out(kHead);
  constexpr std::string_view kReaders = "@readers";
  out.replace(out.find(kReaders), kReaders.size(),
              alone ? "" : "Two variants read the same text. ");
  out += alone ? panel_html("left", "Shown")
               : panel_html("left", "Left") + panel_html("right", "Right");
  out += kFoot;
  out += "<script type=\"application/json\" id=\"attention-data\">" +
         script_json(page_data(result, with_maps)) + "</script>\n";
  return out + "</section>\n";
}

}  // namespace fovea
